"""What a file may change: what a search here would choose itself, and nothing beyond."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from picks import argument, env, flag, loader, patch

from autotune.errors import UsageError
from autotune.export.parts import ChangePart
from autotune.export.read import core_changes
from autotune.knobs.declared import SDK_VALUE
from autotune.knobs.registry import builtin, knobs_for
from autotune.knobs.vocabulary import _imagined
from autotune.model.change import Change, Constant, Env, Flag, Keyword, Launcher, Patch
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import Facts, HostFacts, ScriptConstant, ScriptFacts, ScriptFlag
from autotune.model.study import DeclaredSpec, SpaceRequest
from autotune.space.accept_changes import accepted
from autotune.space.choose_delivery import choose, constant_text, way

HOST = HostFacts(
    cpus=2, physical_cores=2, memory_bytes=1 << 30, allocators={"jemalloc": "/usr/lib/libjemalloc.so.2"}
)
SCRIPT = ScriptFacts(
    path="/w/train.py",
    flags=(
        ScriptFlag(names=("--batch-size", "-b"), dest="batch_size", kind="int"),
        ScriptFlag(names=("--lr",), dest="lr", kind="float"),
        ScriptFlag(names=("--optimizer",), dest="optimizer", choices=("sgd", "adamw")),
        ScriptFlag(names=("--resume",), dest="resume"),
        ScriptFlag(names=("--fused-loss",), dest="fused_loss", kind="switch"),
    ),
    constants=(ScriptConstant(name="BATCH_SIZE", file="train.py", line=3, value=32),),
)
HERE = Facts(host=HOST, script=SCRIPT)
KINDS = {bool: "bool", int: "int", float: "float", str: "str"}


def taken(change, *, facts=HERE, knobs=None, **more):
    (found,) = accepted([change], facts, builtin() if knobs is None else knobs, **more)
    return found


def refused(change, **more):
    with pytest.raises(UsageError) as caught:
        taken(change, **more)
    assert caught.value.message.startswith(f"{change.knob}={change.value} is not applied: ")
    assert caught.value.hint
    return caught.value.message.partition(": ")[2]


def scripted(facts, knob, value):
    """The machine with a script that has an option and a constant for this knob."""
    flags = [w for w in knob.spellings if isinstance(w, Flag)]
    constants = [w for w in knob.spellings if isinstance(w, Constant)]
    own = knob.own(facts)
    script = ScriptFacts(
        path="/w/train.py",
        flags=tuple(ScriptFlag(names=w.names[:1], dest="x", kind=KINDS[type(value)]) for w in flags),
        constants=tuple(
            ScriptConstant(name=w.names[0], file="train.py", line=1, value=own) for w in constants
        )
        if isinstance(own, int)
        else (),
    )
    return replace(facts, script=script)


def test_whatever_a_search_would_choose_is_taken_over_unchanged():
    seen = set()
    for imagined in _imagined():
        for knob in builtin().values():
            for value in knob.domain(imagined):
                facts, dead = scripted(imagined, knob, value), frozenset()
                while isinstance(change := way(knob, value, facts, dead), Change):
                    assert taken(change, facts=replace(facts, run=None)) == change
                    seen.add(change.spelling.how)
                    dead |= {(knob.name, change.spelling.how)}
    assert seen == {"flag", "env", "keyword", "patch", "constant", "launcher"}


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "BASH_ENV", "OMP_NUM_THREADS"])
@pytest.mark.parametrize("knob", builtin())
def test_a_variable_is_set_by_its_own_knob_alone(knob, name):
    if Env(name) in builtin()[knob].spellings:
        return
    reason = refused(env(knob, _some_value(knob), name, delivered="/evil"))
    assert f"the variable {name} is not a delivery" in reason


def _some_value(knob):
    values = [v for facts in _imagined() for v in builtin()[knob].domain(facts)]
    return values[-1] if values else 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (flag("batch_size", 64, "--lr"), "the option --lr is not a delivery"),
        (flag("batch_size", 64, "--resume"), "the option --resume is not a delivery"),
        (flag("num_workers", 4, "--num-workers"), "The script has no option --num-workers"),
        (flag("batch_size", 64, "--batch-size", delivered="8; reboot"), "has no text '8; reboot'"),
        (flag("batch_size", "x.pt", "--batch-size"), "has no value 'x.pt'"),
        (argument("num_workers", 4, "subprocess.Popen", "bufsize"), "the argument subprocess.Popen:bufsize"),
        (loader("worker_init_fn", 4, knob="num_workers"), "DataLoader:worker_init_fn is not a delivery"),
        (patch("malloc", "jemalloc"), "a patch in the process is not a delivery"),
        (patch("precision", "bf17"), "precision has no value 'bf17'"),
        (env("malloc", "tcmalloc", "LD_PRELOAD", "/evil.so"), "LD_PRELOAD cannot set this value"),
        (env("malloc", "/evil.so", "LD_PRELOAD", "/evil.so"), "malloc has no value '/evil.so'"),
        (env("threads", "2 evil", "OMP_NUM_THREADS"), "threads has no value"),
        (env("threads", "x2", "OMP_NUM_THREADS"), "threads has no value 'x2'"),
    ],
)
def test_what_a_knob_does_not_declare_itself_is_refused(change, reason):
    assert reason in refused(change)


@pytest.mark.parametrize(
    "spelling",
    [
        Constant(("BATCH_SIZE",), file="train.py", line=3, was=16),
        Constant(("BATCH_SIZE",), file="../other.py", line=3, was=32),
        Constant(("model.batch_size",), file="train.py", line=3, was=32),
    ],
)
def test_a_constant_has_to_stand_in_the_script(spelling):
    change = Change(knob="batch_size", value=64, spelling=spelling)
    assert "The script has no constant" in refused(change)
    there = replace(change, spelling=Constant(("BATCH_SIZE",), file="train.py", line=9, was=32))
    assert taken(there).spelling == there.spelling


def test_the_text_that_is_handed_over_is_made_here():
    evil = env("malloc", "jemalloc", "LD_PRELOAD", delivered="/evil.so")
    assert taken(evil).delivered == "/usr/lib/libjemalloc.so.2"
    assert taken(env("threads", 2, "OMP_NUM_THREADS", delivered="2 evil")).delivered == "2"


def test_an_options_other_spellings_are_those_of_the_script():
    change = Change(
        knob="batch_size", value=64, spelling=Flag(("--batch-size", "--lr", "--seed")), delivered="64"
    )
    assert taken(change).spelling == Flag(("--batch-size", "-b"))


def test_an_option_that_sizes_several_loaders_keeps_its_own_number():
    assert taken(flag("batch_size", 64, "--batch-size", delivered="128")).delivered == "128"


# Knobs that nobody declares here ------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        flag("mine", 0.1, "--lr"),
        flag("mine", "adamw", "--optimizer"),
        Change(knob="mine", value=True, spelling=Flag(("--fused-loss",))),
        argument("mine", "fast", SDK_VALUE, "mine"),
    ],
)
def test_what_the_script_itself_takes_from_few_values_needs_no_declaration(change):
    assert taken(change) == change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (env("mine", "Ring", "NCCL_ALGO"), "would set the variable NCCL_ALGO"),
        (
            argument("mine", True, "torch.optim.AdamW", "foreach"),
            "set the argument torch.optim.AdamW:foreach",
        ),
        (flag("mine", "evil.ckpt", "--resume"), "would set the option --resume"),
        (flag("mine", 1, "--other"), "The script has no option --other"),
        (flag("mine", "lbfgs", "--optimizer"), "would set the option --optimizer"),
    ],
)
def test_anything_else_has_to_be_allowed_by_name(change, reason):
    assert reason in refused(change)
    assert reason in refused(change, allow=("other",))


@pytest.mark.parametrize(
    "change",
    [
        env("mine", "Ring", "NCCL_ALGO"),
        argument("mine", True, "torch.optim.AdamW", "foreach"),
        flag("mine", "my.ckpt", "--resume"),
    ],
)
def test_what_is_allowed_by_name_is_taken_unchanged_written(change):
    assert taken(change, allow=("mine",)) == change


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (env("mine", "x", "LD_PRELOAD"), "LD_PRELOAD decides which code runs"),
        (env("mine", "x", "PYTHONPATH"), "PYTHONPATH decides which code runs"),
        (env("mine", 1, "MINE", delivered="/evil"), "A value of MINE names a file"),
        (
            argument("mine", True, "subprocess.Popen", "shell"),
            "subprocess.Popen:shell decides which code runs",
        ),
        (argument("mine", False, "torch.load", "weights_only"), "torch.load:weights_only decides"),
        (flag("mine", 1, "--other"), "The script has no option --other"),
    ],
)
def test_no_permission_lets_a_file_choose_code(change, reason):
    assert reason in refused(change, allow=("mine",))


def test_a_knob_that_ones_own_search_declared_is_known():
    spec = DeclaredSpec(name="mine", effect=Effect.EXACT, values=("Ring", "Tree"), spelling=Env("NCCL_ALGO"))
    knobs = knobs_for(SpaceRequest(name="x", declared=(spec,)))
    assert taken(env("mine", "Tree", "NCCL_ALGO"), knobs=knobs).delivered == "Tree"
    assert "has no value '/x'" in refused(env("mine", "/x", "NCCL_ALGO"), knobs=knobs)
    assert "is not a delivery" in refused(env("mine", "Tree", "LD_PRELOAD"), knobs=knobs)


def test_without_the_script_names_of_the_knobs_own_options_are_enough():
    there = flag("batch_size", 64, "--batch_size")
    assert taken(there, facts=replace(HERE, script=ScriptFacts(path="")), has_script=False) == there
    other = flag("batch_size", 64, "--resume")
    assert "is not a delivery" in refused(other, has_script=False)
    assert "would set the option" in refused(flag("mine", 1, "--lr"), has_script=False)


def test_all_changes_are_judged_before_any_is_taken():
    good = patch("precision", "bf16")
    with pytest.raises(UsageError, match="threads=2 is not applied"):
        accepted([good, env("threads", 2, "PATH")], HERE, builtin())
    changes, refusals = choose(Config({"batch_size": 64, "threads": 2}), HERE, builtin())
    assert refusals == ()
    assert accepted(changes, HERE, builtin()) == changes


def test_a_framework_argument_is_taken_by_its_row():
    row = next(w for w in builtin()["precision"].spellings if isinstance(w, Keyword))
    change = Change(knob="precision", value="bf16", spelling=replace(row, defining_module="evil"))
    assert taken(change).spelling == row
    assert taken(Change(knob="precision", value="bf16", spelling=Patch())).spelling == Patch()


def test_a_file_starts_no_more_processes_than_the_machine_has_cpus():
    facts = replace(HERE, launcher="torchrun --nproc-per-node 1")
    for count in (1, HOST.cpus):
        change = Change(knob="processes", value=count, spelling=Launcher())
        assert taken(change, facts=facts) == change
    many = Change(knob="processes", value=64, spelling=Launcher())
    assert "64 processes are more than this machine has CPUs" in refused(many, facts=facts)
    assert taken(many, facts=replace(HERE, launcher="torchrun --nproc-per-node 64")) == many
    assert "no value" in refused(replace(many, value=10**6), facts=facts)


@pytest.mark.parametrize(
    ("knob", "value", "name", "was", "literal"),
    [
        ("precision", "bf16", "USE_AMP", False, True),
        ("precision", "fp32", "USE_AMP", True, False),
        ("precision", "bf16", "DTYPE", "float16", "bfloat16"),
        ("compile_mode", "off", "COMPILE", True, False),
        ("compile_mode", "default", "USE_COMPILE", False, True),
        ("batch_size", 64, "BATCH_SIZE", 32, 64),
    ],
)
def test_a_constant_is_read_from_its_file_as_the_search_has_chosen_it(knob, value, name, was, literal):
    """A switch of the source stays a switch, and a word the script's own word."""
    delivered = constant_text(builtin()[knob], value, was)
    spelling = Constant((name,), file="train.py", line=3, was=was)
    chosen = Change(knob=knob, value=value, spelling=spelling, delivered=delivered)
    part = ChangePart(knob=knob, how="constant", spelling=spelling.text, value=value, delivered=delivered)
    (read,) = core_changes(SimpleNamespace(changes=[part]))
    assert read == chosen
    constants = (ScriptConstant(name=name, file="train.py", line=3, value=was),)
    found = taken(read, facts=replace(HERE, script=replace(SCRIPT, constants=constants)))
    assert found == chosen
    assert (type(found.literal), found.literal) == (type(literal), literal)


@pytest.mark.parametrize(
    "was", ["16", "", "True", "bf16-mixed", "two words", "it's", '"', "1e-3", 16, 0.5, True]
)
def test_a_constants_text_keeps_its_type(was):
    part = ChangePart(
        knob="batch_size", how="constant", spelling=Constant(("X",), "a.py", 3, was).text, value=1
    )
    (read,) = core_changes(SimpleNamespace(changes=[part]))
    assert (type(read.spelling.was), read.spelling.was) == (type(was), was)
