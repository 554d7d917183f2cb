"""`autotune verify`: the gate of a CI, by its exit code, its screen and its JSON."""

import hashlib
import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from inline_search import inline, with_modules
from study_fakes import changes_of, good_answer, pick, ratio, spec, study

from autotune.cli.commands.verify import as_dict, screen
from autotune.driver.verification import VerificationRequest, Verified
from autotune.export.best_config import write_best
from autotune.launch.devices.claims import ClaimRequest, Resources
from autotune.launch.devices.load_check import LoadCheck
from autotune.launch.devices.machine_lock import MachineLock
from autotune.launch.fake import COMPUTE_BOUND, FAILS_IN_BASELINE
from autotune.loss.loss_guard import LossVerdict
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.machine_load import Culprit, MachineLoad
from autotune.model.measurement import Estimate, LossPoint
from autotune.model.trial import Failure, FailureKind
from autotune.store.journal import Journal
from autotune.store.paths import find_study, studies

BF16 = Config({"precision": "bf16"})
SAME = replace(COMPUTE_BOUND, gains={}, process_noise=0.0)
SLOWER = replace(COMPUTE_BOUND, gains={"precision": {"bf16": 1.6}})


def hit(*pairs):
    return frozenset(pairs)


@pytest.fixture
def best(script):
    """best.yaml of a search that found bf16, beside the script."""
    passed = LossVerdict(level=1, verdict="pass", steps=120, delay_frac_upper95=0.006, noise_frac=0.019)
    found = pick("best", BF16, ratio(2.0), effect=Effect.NUMERIC, loss=passed)
    answer = good_answer(best=found, safe=pick("safe", Config(), ratio(1.0), trial=0), front=())
    given = spec(script=str(script), args=(), cwd=str(script.parent), out="", version="0.0.1")
    write_best(script.parent / "best.yaml", study(spec=given), answer, changes_of)
    return script.parent / "best.yaml"


@pytest.fixture
def world(monkeypatch):
    def use(world, **more):
        return inline(monkeypatch, world, **more)

    return use


def spoiled(ended, assignment):
    """The configuration learns nothing."""
    if assignment.segments[0].config.is_baseline:
        return ended
    flat = tuple(LossPoint(samples=p.samples, loss=5.0, t_s=p.t_s) for p in ended.outcome.loss)
    return replace(ended, outcome=replace(ended.outcome, loss=flat))


def journal():
    with Journal.read(find_study(None) / "journal.db") as opened:
        return list(opened.entries()), opened.pending("mlflow")


def test_a_gain_that_holds_ends_with_0(cli, best, world):
    ran = world(COMPUTE_BOUND)
    code, out, err = cli("verify", "best.yaml")
    assert code == 0, out + err
    assert out.startswith("best    faster   precision=bf16\n")
    assert "ratio   1." in out
    assert " 3 pairs\n" in out
    assert {a.segments[0].config for a in ran} == {Config(), BF16}
    assert err.startswith("the command is that of best.yaml: python train.py\nstudy verify-train-")


class Busy:
    """Load checks of a machine that a program leaves after a while."""

    def __init__(self):
        self.left = 3

    def now(self):
        self.left -= 1
        busy = (Culprit(name="ffmpeg", pid=4711, cores=1.0),) if self.left > 0 else ()
        return MachineLoad(foreign_cores=float(bool(busy)), cpus=2, culprits=busy)

    def since_last(self):
        return None


def test_a_busy_machine_is_waited_for_and_named_in_the_answer(cli, best, world, monkeypatch):
    world(COMPUTE_BOUND)
    monkeypatch.setattr(LoadCheck, "of_machine", lambda environ: Busy())
    code, out, err = cli("verify", "best.yaml", "--wait-for-quiet", "10m")
    assert code == 0, out + err
    assert 'note    The machine was busy: "ffmpeg" (pid 4711) used 1.0 of 2 cores.' in out
    assert 'busy: "ffmpeg" (pid 4711) uses 1.0 of 2 cores; readings will scatter.' in err
    assert "the machine is quiet after 4 s" in err
    entries, _ = journal()
    kinds = [entry.kind for entry in entries if entry.kind in ("busy", "waited", "started")]
    assert kinds[:3] == ["busy", "waited", "started"]


@pytest.fixture
def other():
    """Another search that measures on this machine."""
    request = ClaimRequest(study_id="theirs", label="train-1")
    lock = MachineLock(request, Resources.of_machine({}))
    lock.ahead()
    lock.begin()
    yield lock
    lock.release()


def test_another_search_is_waited_for_and_the_error_names_it_and_the_ways_on(cli, best, world, other):
    ran = world(COMPUTE_BOUND)
    code, out, err = cli("verify", "best.yaml", "--wait", "30s")
    assert (code, out, ran) == (6, "", [])
    assert "waiting up to 30 s: study train-1 of " in err
    assert "error: study train-1 of " in err
    assert "after a wait of 30 s" in err
    assert "hint: wait longer with --wait 2h, or measure beside it with --share" in err


def test_a_verification_beside_another_search_names_it_in_its_answer(cli, best, world, other):
    world(COMPUTE_BOUND)
    code, out, err = cli("verify", "best.yaml", "--share")
    assert code == 0, out + err
    assert "note    The machine was busy: study train-1 of " in out
    assert "measured on the same CPUs." in out
    data = json.loads(cli("verify", "best.yaml", "--share", "--json", "--quiet")[1])
    assert any("measured on the same CPUs" in note for note in data["notes"])


@pytest.mark.parametrize(
    ("what", "more", "code", "message"),
    [
        (SAME, {}, 1, "not shown to be faster than your script"),
        (SLOWER, {}, 7, "slower than your script"),
        (COMPUTE_BOUND, {"change": spoiled}, 7, "its loss is worse"),
        (replace(COMPUTE_BOUND, diverges=hit(("precision", "bf16"))), {}, 7, "its loss is worse"),
        (replace(COMPUTE_BOUND, crashes=hit(("precision", "bf16"))), {}, 1, "it does not run here"),
    ],
)
def test_every_other_answer_has_its_code_and_its_words(cli, best, world, what, more, code, message):
    world(what, **more)
    got, out, err = cli("verify", "best.yaml", "--quiet")
    assert (got, err) == (code, ""), out
    assert message in out.splitlines()[0]
    data = json.loads(cli("verify", "best.yaml", "--json", "--quiet")[1])
    assert (data["schema"], data["exit"], data["knobs"]) == (
        "autotune.verify/v1",
        code,
        {"precision": "bf16"},
    )
    assert message in data["sentence"]


def test_json_reports_too_few_pairs_from_a_measured_no_difference(cli, best, world):
    reported = {}
    for name, what, budget in (("measured", SAME, "10m"), ("short", COMPUTE_BOUND, "35s")):
        world(what)
        code, out, _err = cli("verify", "best.yaml", "--json", "--quiet", "--budget", budget)
        reported[name] = json.loads(out)
        assert (code, reported[name]["verdict"]) == (1, "no_difference")
    assert reported["measured"]["because"] == "not_cleared"
    assert "is not above 1.00" in reported["measured"]["why"]
    assert reported["short"]["because"] == "too_few_pairs"
    assert "a claim needs at least three pairs" in reported["short"]["why"]
    world(COMPUTE_BOUND)
    data = json.loads(cli("verify", "best.yaml", "--json", "--quiet")[1])
    assert (data["because"], data["why"], data["notes"]) == (None, None, [])


def test_a_script_that_differs_from_itself_is_named_on_the_screen_and_in_json(tmp_path):
    control = Estimate(value=1.6, low=1.55, high=1.65, n=4, unit="ratio")
    request = VerificationRequest(pick="best", changes=tuple(changes_of(BF16)), effect=Effect.NUMERIC)
    found = Verified(
        request=request,
        verdict="no_difference",
        because="unsteady",
        comparison=None,
        identical=control,
        study=study(),
        study_dir=tmp_path,
    )
    message = "nothing is claimed: your script differs from itself by up to 1.65 times here"
    assert f"note    {message}\n" in screen(found)
    assert as_dict(found)["why"] == message


def test_a_threshold_that_is_not_cleared_is_no_difference(cli, best, world):
    world(COMPUTE_BOUND)
    code, out, _err = cli("verify", "best.yaml", "--at-least", "3")
    assert code == 1
    assert "not shown to be faster than 3.00 times your script" in out


def test_a_knob_that_does_not_take_effect_ends_with_6(cli, best, world):
    world(replace(COMPUTE_BOUND, rejects=hit(("precision", "bf16"))))
    code, out, err = cli("verify", "best.yaml", "--json")
    assert code == 6
    assert "best does not take effect here: precision=bf16 did not take effect" in err
    assert json.loads(out)["error"]["kind"] == "NotApplied"


def test_a_script_that_fails_by_itself_ends_with_3(cli, best, world):
    world(FAILS_IN_BASELINE)
    code, _out, err = cli("verify", "best.yaml")
    assert code == 3
    assert "train.py fails unchanged" in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nowhere.yaml"], "cannot read nowhere.yaml"),
        (["train.py"], "train.py"),
        (["best.yaml", "--", "python", "trian.py"], "there is no script trian.py"),
        (["best.yaml", "--pick", "fastest"], 'this file holds no pick "fastest"'),
        (["best.yaml", "--pick", "safe"], "there is nothing to verify"),
        (["best.yaml", "--budget", "5s"], "too short"),
        (["best.yaml", "--budget", "soon"], "no duration"),
        (["best.yaml", "--pairs", "2"], "a claim needs at least three"),
        (["best.yaml", "--at-least", "0"], "--at-least 0 is no ratio"),
        (["best.yaml", "--python", "./python9"], "there is no interpreter ./python9"),
    ],
)
def test_what_cannot_be_carried_out_ends_with_2_and_leaves_no_study(cli, best, world, argv, message):
    ran = world(COMPUTE_BOUND)
    code, out, err = cli("verify", *argv)
    assert (code, out, ran, studies()) == (2, "", [], [])
    assert message in err
    data = json.loads(cli("verify", "--json", *argv)[1])
    assert (data["exit"], data["error"]["kind"] in ("UsageError", "InvalidBudget")) == (2, True)


def test_a_script_that_is_gone_is_named(cli, best, world, script):
    script.unlink()
    code, _out, err = cli("verify", "best.yaml")
    assert code == 2
    assert "there is no script train.py" in err


def test_a_home_that_cannot_be_written_ends_with_5(cli, best, world, monkeypatch, tmp_path):
    world(COMPUTE_BOUND)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "file" / "home"))
    code, _out, err = cli("verify", "best.yaml")
    assert code == 5
    assert "the study directory" in err


def test_the_study_is_for_its_user_alone(cli, best, world):
    world(COMPUTE_BOUND)
    cli("verify", "best.yaml")
    assert find_study(None).stat().st_mode & 0o777 == 0o700


def test_a_budget_for_too_few_pairs_claims_nothing_and_says_how_many_it_takes(cli, best, world):
    world(COMPUTE_BOUND)
    code, out, _err = cli("verify", "best.yaml", "--budget", "35s")
    assert code == 1
    assert "a claim needs at least three pairs" in out
    assert "[" not in "".join(line for line in out.splitlines() if line.startswith("ratio"))
    assert "1 pairs" not in out


def failing(number, kind, message):
    """The run of that number ends so in place of what it measured."""

    def change(ended, assignment):
        if assignment.trial != number:
            return ended
        return replace(ended, outcome=Failure(kind=kind, message=message))

    return change


def test_a_run_of_the_config_that_fails_after_three_pairs_is_1_and_reported(cli, best, world):
    wavering = replace(COMPUTE_BOUND, process_noise=0.3)
    world(wavering, change=failing(8, FailureKind.OOM_CUDA, "no memory left"))
    code, out, _err = cli("verify", "best.yaml", "--quiet")
    assert code == 1
    assert out.startswith("best    it does not run here every time")
    assert "failed  out of GPU memory: no memory left\n" in out


def test_a_run_of_the_script_that_fails_is_reported_as_its_own(cli, best, world):
    world(COMPUTE_BOUND, change=failing(2, FailureKind.OOM_CUDA, "no memory left"))
    code, out, _err = cli("verify", "best.yaml", "--quiet")
    assert code == 1
    assert out.startswith("best    not shown to be faster than your script")
    assert "note    nothing is claimed: your unchanged script failed in one of its runs\n" in out
    assert "failed  your unchanged script: out of GPU memory: no memory left\n" in out


@pytest.mark.parametrize(("arm", "whose"), [(True, "your unchanged script: "), (False, "")])
def test_runs_that_were_lost_are_reported_as_what_they_are(cli, best, world, arm, whose):
    def lost(ended, assignment):
        if assignment.segments[0].config.is_baseline is not arm or assignment.trial < 2:
            return ended
        return replace(ended, outcome=Failure(kind=FailureKind.WARMUP_SHORT, message="too few steps"))

    world(COMPUTE_BOUND, change=lost)
    code, out, _err = cli("verify", "best.yaml", "--quiet", "--json")
    reported = json.loads(out)
    assert (code, reported["verdict"], reported["because"]) == (1, "no_difference", "lost_runs")
    assert reported["why"].startswith("runs failed, so fewer")
    assert reported["failure"] == f"{whose}too short to measure: too few steps"


@pytest.mark.parametrize("at", [1, 5])
def test_an_edited_script_ends_it_with_2(cli, best, world, script, at):
    def edit(number):
        if number == at:
            script.write_text("print('another one')\n")

    world(COMPUTE_BOUND, before=edit)
    code, out, err = cli("verify", "best.yaml")
    assert code == 2
    if at == 1:
        assert "train.py was changed before it was measured once" in err
        assert "verify again" in err
    else:
        assert "train.py was changed during the search: this holds for the script before the change" in out
    assert json.loads(cli("show", "--json")[1])["stopped"] == "script"


def test_an_edited_module_ends_it_with_2_and_its_name(cli, best, world, script):
    module = script.parent / "net.py"
    module.write_text("one")
    files = {str(module): hashlib.sha256(b"one").hexdigest()}

    def edit(number):
        if number == 6:
            module.write_text("two")

    world(COMPUTE_BOUND, before=edit, change=with_modules(files))
    code, out, _err = cli("verify", "best.yaml")
    assert code == 2
    assert "net.py was changed during the search" in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_a_signal_ends_it_with_what_there_is(cli, best, world, number, code):
    world(COMPUTE_BOUND, before=lambda n: signal.raise_signal(number) if n == 6 else None)
    got, out, _err = cli("verify", "best.yaml")
    assert got == code
    assert "it was stopped: these are the measurements until then" in out
    world(COMPUTE_BOUND, before=lambda n: signal.raise_signal(number))
    got, out, err = cli("verify", "best.yaml")
    assert (got, out) == (code, "")
    assert "verify again" in err
    assert "resume" not in err


def test_jsonl_is_a_line_per_event_and_the_answer_in_the_last(cli, best, world):
    world(COMPUTE_BOUND)
    code, out, err = cli("verify", "best.yaml", "--jsonl", "--quiet")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert rows[0]["event"] == "study_began"
    assert {"trial_started", "trial_ended"} <= {row.get("event") for row in rows}
    assert (rows[-1]["schema"], rows[-1]["exit"]) == ("autotune.verify/v1", 0)
    assert rows[-1]["speedup"]["n"] == 3
    _code, out, _err = cli("verify", "nowhere.yaml", "--jsonl")
    assert len(out.splitlines()) == 1
    assert json.loads(out)["error"]["kind"] == "UsageError"


def test_what_is_not_as_it_was_is_reported(cli, best, world):
    world(COMPUTE_BOUND)
    out = cli("verify", "best.yaml", "--quiet")[1]
    assert "differs " in out
    assert "the script is not the one that was searched" in out
    data = json.loads(cli("verify", "best.yaml", "--json", "--quiet")[1])
    assert {"script", "cpu", "autotune"} <= set(data["differs"])
    assert "the search ran with CPU X" in data["differs"]["cpu"]


def test_list_and_show_tell_a_verification_as_one(cli, best, world):
    world(COMPUTE_BOUND)
    cli("verify", "best.yaml")
    label = studies()[0].label
    (row,) = json.loads(cli("list", "--json")[1])["studies"]
    assert (row["answer"], row["stopped"], row["script"]) == (
        "precision=bf16: faster",
        "finished",
        "train.py",
    )
    assert "bf16: faster" in cli("list")[1]
    code, out, err = cli("show", label)
    assert (code, err) == (0, "")
    assert "best    faster   precision=bf16" in out
    assert "[" in out
    assert "confirm" in out
    data = json.loads(cli("show", "--json")[1])
    assert data["verify"]["verdict"] == "faster"
    assert len(data["trials"]) == 8


def test_a_verification_is_cleaned_up_like_a_search(cli, best, world):
    world(COMPUTE_BOUND)
    cli("verify", "best.yaml")
    (found,) = studies()
    (found.path / "trials" / "t0000").mkdir(parents=True)
    (found.path / "trials" / "t0000" / "stdout.log").write_text("x" * 5000)
    assert cli("clean", "--yes")[0] == 0
    assert list((found.path).glob("trials/*")) == []
    assert cli("clean", found.label, "--yes")[0] == 0
    assert studies() == []


def test_two_of_one_minute_have_two_names(cli, best, world):
    world(COMPUTE_BOUND)
    for _ in range(3):
        assert cli("verify", "best.yaml")[0] == 0
    labels = [found.label for found in studies()]
    assert len(set(labels)) == 3
    assert cli("show", labels[0])[0] == 0


@pytest.mark.parametrize("verb", ["resume", "sync", "ui"])
def test_a_verification_is_neither_resumed_nor_sent(cli, best, world, verb):
    world(COMPUTE_BOUND)
    cli("verify", "best.yaml")
    entries, pending = journal()
    assert (len(entries) > 10, pending) == (True, [])
    code, _out, err = cli(verb, studies()[0].label)
    assert code == 2
    assert "`autotune verify`" in err
    assert [e.kind for e in journal()[0]][-1] == "stopped"


def test_the_latest_study_to_resume_is_a_search(cli, best, world, script):
    world(SAME)
    words = ("search", "--script", "train.py", "--budget", "2m", "--driver", "inline", "--trials", "3")
    assert cli(*words, "--out", "other.yaml", "--label", "mine")[0] == 8
    cli("verify", "best.yaml")
    assert cli("resume")[0] == 8
    assert find_study(None, searches=True) == find_study("mine")


def test_the_command_may_be_another_one(cli, best, world, script):
    ran = world(COMPUTE_BOUND)
    other = script.parent / "other.py"
    other.write_text("print(2)\n")
    assert cli("verify", "best.yaml", "--", "python", "other.py", "--lr", "1")[0] == 0
    assert (Path(ran[0].launch.script).name, ran[0].launch.argv) == ("other.py", ("--lr", "1"))


def test_what_breaks_on_the_way_is_written_down(cli, best, world):
    def broken(number):
        if number == 4:
            raise RuntimeError("something of ours broke")

    world(COMPUTE_BOUND, before=broken)
    code, _out, err = cli("verify", "best.yaml")
    assert code == 70
    assert "something of ours broke" in err
    assert journal()[0][-1].data["why"] == "error"
