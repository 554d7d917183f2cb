"""Knobs in the model, its attention, its memory and its gradients, seen from outside our own books.

Several sessions live one after the other in a process that has torch already, so that a machine
pays for torch once; what a kernel, a hook of the user's, autograd or dynamo itself says is compared
with what the readings say, and every session is undone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from fake_torchao import FAKE_TORCHAO
from trial_kit import PRELUDE, SHORT

from autotune.model.change import Change, Patch

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch


def patch(knob: str, value: Any) -> Change:
    return Change(knob=knob, value=value, spelling=Patch())


WORLD = (
    PRELUDE
    + """
import copy, io
from autotune.model.change import Change, Patch
from autotune.protocol.plan import Plan
from autotune.trial.entry.trial_runtime import TrialRuntime as Session
torch.set_num_threads(1)

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(8, 32), nn.Linear(32, 8), nn.Dropout(0.2)
    def forward(self, x, *, scale=1.0):
        h = x.unsqueeze(1)
        x = x + F.scaled_dot_product_attention(h, h, h).squeeze(1)
        return x + scale * self.drop(self.down(F.gelu(self.up(x))))

class Net(nn.Module):
    def __init__(self, kind=Layer, blocks=4):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.layers = nn.ModuleList(kind() for _ in range(blocks))
    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x, scale=0.5)
        return x

def session(**wanted):
    plan = Plan(nonce="n", script=__file__, argv=(), events_path="", trial_dir="", changes=tuple(
        Change(knob=k, value=v, spelling=Patch()) for k, v in wanted.items()))
    made = Session(plan, None)
    made.begin()
    return made

def train(model=None, steps=4, sizes=(6,), to_none=True, before=None, made=None):
    torch.manual_seed(0)
    model = model or Net()
    if before is not None:
        before(model)
    class Own(torch.optim.AdamW):
        def step(self, closure=None): return super().step(closure)
    opt = Own(model.parameters(), lr=0.01)
    draws = torch.Generator().manual_seed(1)
    losses, kept, saved, facts = [], [], 0, None
    for at in range(steps):
        x = torch.randn(4, sizes[at % len(sizes)], 8, generator=draws)
        opt.zero_grad(set_to_none=to_none)
        kept.append(sum(p.grad is not None for p in model.parameters()))
        saved = 0
        def pack(tensor):
            nonlocal saved
            saved += tensor.numel() * tensor.element_size()
            return tensor
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = model(x)
            loss = (out - x).square().mean()
        loss.backward()
        if made is not None and at == 2:
            # A process in which nothing is changed is left alone as soon as that is known.
            facts = made.facts()
        opt.step()
        losses.append(loss.item())
    return dict(model=model, opt=opt, losses=losses, kept=kept, saved=saved, out=out, facts=facts)

def statuses(made):
    return {r.knob: (r.found, r.status) for r in made.readings.compute() if r.wanted is not None}
"""
)

EAGER = (
    WORLD
    + """
from torch.profiler import ProfilerActivity, profile
plain, cls_plain = F.scaled_dot_product_attention, torch.optim.Optimizer.zero_grad
switches = lambda: [getattr(torch.backends.cuda, f"{n}_sdp_enabled")()
                    for n in ("flash", "mem_efficient", "math", "cudnn")]
found, before = {}, switches()

for kernel in ("auto", "math", "flash"):
    made = session(attention_backend=kernel)
    ran = train(steps=2)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        train(ran["model"], steps=1)
    made.patches.undo_all()
    found[kernel] = dict(
        status=statuses(made), undone=switches() == before and F.scaled_dot_product_attention is plain,
        kernels=sorted({e.key for e in seen.key_averages() if "::_scaled" in e.key and "back" not in e.key}))

for which in ("none", "selective", "full"):
    made = session(**({} if which == "none" else {"activation_checkpointing": which}))
    ran_in_blocks = [0]
    def hook(model):
        for layer in model.layers:
            layer.up.register_forward_hook(lambda *_: ran_in_blocks.__setitem__(0, ran_in_blocks[0] + 1))
    ran = train(before=hook, made=made)
    model = ran["model"]
    for layer in model.layers:
        layer.up._forward_hooks.clear()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    other = torch.load(file, weights_only=False)
    found[which] = dict(
        status=statuses(made), ran=ran_in_blocks[0],
        value=ran["facts"].values.get("activation_checkpointing"),
        saved=ran["saved"], losses=ran["losses"], keys=list(model.state_dict()),
        copies=[type(m.layers[0]) is Layer for m in (copy.deepcopy(model), other)],
        blocks=ran["facts"].model.blocks.count, faults=sorted(made.faults.off))
    made.patches.undo_all()
    found[which]["undone"] = all(type(layer) is Layer for layer in model.layers)

for drop in (False, True):
    made = session(**({"set_to_none": True} if drop else {}))
    ran = train(to_none=False, made=made)
    facts = ran["facts"]
    found["drop" if drop else "keep"] = dict(
        status=statuses(made), kept=ran["kept"], losses=ran["losses"], zeroes=facts.zeroes_gradients,
        pause=facts.gradients_pause, value=facts.values["set_to_none"])
    made.patches.undo_all()
back = torch.optim.Optimizer.zero_grad is cls_plain
found["keep"]["undone"] = back and train(to_none=False)["kept"][-1] > 0

made = session(pure_bf16=True)
ran = train()
model, opt = ran["model"], ran["opt"]
kinds = lambda: [sorted({str(t.dtype) for t in ts}) for ts in (
    model.parameters(), [v for s in opt.state.values() for v in s.values() if v.dim()],
    [p.grad for p in model.parameters()])]
found["pure"] = dict(status=statuses(made), kinds=kinds(), out=str(ran["out"].dtype))
made.patches.undo_all()
found["pure"]["undone"] = kinds()
reported(**found)
"""
)


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from trial_kit import runner

    ran = runner(tmp_path_factory.mktemp("eager"))(EAGER, bare=True, timeout_s=280)
    assert ran.code == 0, ran.err
    return ran.reported


@pytest.mark.timeout(300)
def test_the_kernel_that_was_requested_is_the_one_that_runs(eager: dict[str, Any]) -> None:
    flash, math = (
        ["aten::_scaled_dot_product_flash_attention_for_cpu"],
        ["aten::_scaled_dot_product_attention_math"],
    )
    for kernel, kernels in (("auto", flash), ("flash", flash), ("math", math)):
        reported = eager[kernel]
        assert reported["kernels"] == kernels, kernel
        assert reported["status"] == {"attention_backend": [kernel, "applied"]}
        assert reported["undone"]


@pytest.mark.timeout(300)
def test_checkpointed_blocks_run_again_keep_less_and_give_the_same_losses_with_dropout(
    eager: dict[str, Any],
) -> None:
    none, selective, full = eager["none"], eager["selective"], eager["full"]
    assert none["value"] == "none"
    assert (none["ran"], selective["ran"], full["ran"]) == (4 * 4, 4 * 6, 4 * 8)
    assert none["saved"] > selective["saved"] > full["saved"]
    assert none["losses"] == selective["losses"] == full["losses"]
    for which, reported in (("selective", selective), ("full", full)):
        assert reported["status"] == {"activation_checkpointing": [which, "applied"]}
        assert reported["keys"] == none["keys"]
        assert reported["copies"] == [True, True]
        assert reported["blocks"] == 4
        assert reported["faults"] == []
        assert reported["undone"]


@pytest.mark.timeout(300)
def test_gradients_go_where_the_script_wants_zeros_and_training_is_the_same(eager: dict[str, Any]) -> None:
    keep, drop = eager["keep"], eager["drop"]
    assert keep["zeroes"]
    assert not keep["pause"]
    assert keep["value"] is False
    assert keep["kept"][-1] > 0
    assert drop["kept"] == [0, 0, 0, 0]
    assert drop["losses"] == keep["losses"]
    assert drop["status"] == {"set_to_none": [True, "applied"]}
    assert keep["undone"]


@pytest.mark.timeout(300)
def test_weights_gradients_and_optimizer_state_are_bf16_and_outputs_are_not(eager: dict[str, Any]) -> None:
    reported = eager["pure"]
    assert reported["status"] == {"pure_bf16": [True, "applied"]}
    assert reported["kinds"] == [["torch.bfloat16"]] * 3
    assert reported["out"] == "torch.float32"
    assert reported["undone"] == [["torch.float32"]] * 3


FACTS = (
    WORLD
    + """
import random
import numpy
from torch.utils.checkpoint import checkpoint
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
    def forward(self, x, **_): return x + self.layer(x)
class InPlace(Block):
    def forward(self, x, **_):
        h = self.layer(x)
        x += 1
        return h + x
class Normed(Block):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
    def forward(self, x, **_): return x + self.norm(self.layer(x))
class Counting(Block):
    seen = 0
    def forward(self, x, **_):
        self.seen = self.seen + 1
        return x + self.layer(x)
class Caching(Block):
    def forward(self, x, **_):
        self.__dict__.setdefault("mask", torch.ones(8))
        return x + self.layer(x) * self.mask
class Drawing(Block):
    def forward(self, x, **_): return x + self.layer(x) * random.choice([1.0, 1.0])
class DrawingToo(Block):
    def forward(self, x, **_): return x + self.layer(x) * float(numpy.random.rand() < 2)
class Again(Block):
    def forward(self, x, **_): return x + checkpoint(self.layer, x, use_reentrant=False)
class Reentrant(Block):
    def forward(self, x, **_): return x + checkpoint(self.layer, x, use_reentrant=True)
class Dropping(Block):
    def forward(self, x, **_): return x + F.dropout(self.layer(x), 0.2, self.training)
class Attending(Block):
    def forward(self, x, **_):
        h, p = self.layer(x).unsqueeze(1), 0.2 if self.training else 0.0
        return x + F.scaled_dot_product_attention(h, h, h, dropout_p=p).squeeze(1)
class Masking(Block):
    def forward(self, x, **_):
        h, mask = self.layer(x).unsqueeze(1), torch.ones(6, 6, dtype=torch.bool)
        return x + F.scaled_dot_product_attention(h, h, h, mask).squeeze(1)
class Noisy(Block):
    def forward(self, x, **_): return x + self.layer(x) + 0.01 * torch.randn_like(x)
class Direct(Net):
    def forward(self, x):
        for layer in self.layers:
            x = layer.forward(self.first(x))
        return x
class Uneven(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = iter((4, 16))
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                n = next(sizes)
                self.a, self.b = nn.Linear(8, n), nn.Linear(n, 8)
            def forward(self, x): return self.b(self.a(x))
        self.parts = nn.Sequential(Two(), Two())
    def forward(self, x): return self.parts(x)
found = {}
def look(name, model, **how):
    made = session()
    facts = train(model, made=made, **how)["facts"]
    blocks = facts.model.blocks
    words = [] if blocks is None else [w for w in (
        "alike", "watched", "checkpointed", "changes_input", "changes_state", "host_random")
        if getattr(blocks, w)]
    found[name] = dict(blocks=blocks and (blocks.name, blocks.count), words=words,
                       dropout=facts.model.dropout, value=facts.values.get("activation_checkpointing"),
                       masked=facts.attention is not None and facts.attention.masked,
                       attention=facts.attention is not None, pause=facts.gradients_pause,
                       faults=sorted(made.faults.off))
    made.patches.undo_all()
for kind in (Block, InPlace, Normed, Counting, Caching, Drawing, DrawingToo, Again, Reentrant):
    look(kind.__name__, Net(kind, 2))
for kind in (Dropping, Attending, Masking, Noisy):
    look(kind.__name__, Net(kind, 2))
made = session()
found["convolves"] = train(nn.Sequential(nn.Conv1d(6, 6, 1)), made=made)["facts"].model.convolves
made.patches.undo_all()
look("Direct", Direct(Block, 2))
look("Uneven", Uneven())
look("Chain", nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)))
look("Encoder", nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2,
                                      enable_nested_tensor=False))
class Sometimes(Net):
    at = 0
    def forward(self, x):
        type(self).at += 1
        return self.layers[0](x) if self.at % 2 else self.layers[1](self.layers[0](x))
look("Sometimes", Sometimes(Block, 2), to_none=False)
class Chosen(Net):
    def forward(self, x):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return super().forward(x)
made = session()
facts = train(Chosen(), made=made)["facts"]
found["chosen"] = [facts.attention.restricted, facts.values["attention_backend"]]
made.patches.undo_all()
made = session(attention_backend="flash")
train(Net(Block, 2))
found["without"] = [(r.status, r.reason) for r in made.readings.compute() if r.wanted is not None]
made.patches.undo_all()
made = session(activation_checkpointing="full")
train(nn.Sequential(nn.Linear(8, 8)))
found["no_blocks"] = [(r.status, r.reason) for r in made.readings.compute() if r.wanted is not None]
made.patches.undo_all()
@torch.jit.script
def early(q): return F.scaled_dot_product_attention(q, q, q)
made = session()
@torch.jit.script
def late(q): return F.scaled_dot_product_attention(q, q, q)
q = torch.randn(1, 2, 4, 4)
found["jit"] = bool(torch.equal(early(q), late(q)))
made.patches.undo_all()
reported(**found)
"""
)


@pytest.mark.timeout(300)
def test_what_blocks_do_when_they_run_is_a_fact_and_what_they_cannot_bear_is_seen(
    run: Callable[..., Any],
) -> None:
    ran = run(FACTS, bare=True, timeout_s=280)
    assert ran.code == 0, ran.err
    reported = ran.reported
    good = ["alike", "watched"]
    expected = {
        "Block": good,
        "InPlace": [*good, "changes_input"],
        "Normed": [*good, "changes_state"],
        "Counting": [*good, "changes_state"],
        "Caching": good,
        "Drawing": [*good, "host_random"],
        "DrawingToo": [*good, "host_random"],
        "Again": ["alike", "watched", "checkpointed"],
        "Reentrant": ["alike", "watched", "checkpointed"],
        "Direct": ["alike"],
        "Uneven": ["watched"],
        "Chain": [],
        "Encoder": good,
    }
    assert {name: reported[name]["words"] for name in expected} == expected
    assert all(reported[name]["faults"] == [] for name in expected)
    assert reported["Block"]["blocks"] == ["Block", 2]
    assert reported["Chain"]["blocks"] is None
    assert reported["Encoder"]["blocks"] == ["TransformerEncoderLayer", 2]
    assert reported["Encoder"]["attention"]
    assert not reported["Block"]["attention"]
    assert reported["Sometimes"]["pause"]
    assert reported["chosen"] == [True, "math"]
    (status, reason), (other, why) = reported["without"][0], reported["no_blocks"][0]
    assert status == other == "refused"
    assert "scaled_dot_product_attention" in reason
    assert "no repeated blocks" in why
    assert reported["jit"]
    drawing = {name for name in reported if isinstance(reported[name], dict) and reported[name]["dropout"]}
    # Modules of the kind count whatever their share.
    assert drawing == {"Drawing", "DrawingToo", "Dropping", "Attending", "Noisy", "Encoder"}
    assert all(reported[name]["faults"] == [] for name in drawing)
    assert reported["Masking"]["masked"]
    assert not reported["Attending"]["masked"]
    assert (reported["Again"]["value"], reported["Reentrant"]["value"], reported["Block"]["value"]) == (
        "full",
        "full",
        "none",
    )
    assert reported["convolves"]


COMPILED = (
    WORLD
    + """
import torch._dynamo as dynamo
import torch._functorch.config as functorch
real = torch.compile
def cheap(model=None, **how):
    # Traced and partitioned as for inductor, then run unchanged: no C++ compiler at work.
    how.pop("mode", None)
    return real(model, backend="aot_eager_decomp_partition", **how)
torch.compile = cheap
found = {}
def look(name, steps=2, sizes=(6,), **wanted):
    dynamo.reset()
    dynamo.utils.counters.clear()
    made = session(compile_mode="default", **wanted)
    ran = train(Net(blocks=2), steps=steps, sizes=sizes)
    model, stats = ran["model"], dynamo.utils.counters["stats"]
    found[name] = dict(status=statuses(made), saved=ran["saved"], graphs=stats["unique_graphs"],
                       calls=stats["calls_captured"], faults=sorted(made.faults.off),
                       broken=len(dynamo.utils.counters["graph_break"]))
    made.patches.undo_all()
    found[name]["undone"] = not any("_compiled_call_impl" in m.__dict__ for m in model.modules()) and all(
        type(layer) is Layer for layer in model.layers) and functorch.activation_memory_budget == 1.0
look("whole", compile_region="whole")
look("block", compile_region="block")
look("budget", memory_budget=0.3, compile_region="block")
look("full", activation_checkpointing="full", attention_backend="math")
look("both", activation_checkpointing="selective", compile_region="block", precision="bf16")
for shapes in ("static", "dynamic"):
    look(shapes, steps=3, sizes=(6, 7, 8), compile_shapes=shapes, compile_region="block")
reported(**found)
"""
)


@pytest.mark.timeout(500)
def test_compiled_code_obeys_and_what_it_does_is_read_from_what_was_compiled(run: Callable[..., Any]) -> None:
    ran = run(COMPILED, bare=True, timeout_s=480)
    assert ran.code == 0, ran.err
    reported = ran.reported
    for name, each in reported.items():
        assert all(status == "applied" for _, status in each["status"].values()), (name, each)
        assert each["undone"], name
        assert each["faults"] == [], name
        assert each["broken"] == 0, name
    assert (reported["whole"]["graphs"], reported["block"]["graphs"]) == (1, 1)
    assert reported["whole"]["calls"] > 1.5 * reported["block"]["calls"]
    assert reported["budget"]["saved"] < reported["block"]["saved"]
    assert reported["full"]["saved"] < reported["whole"]["saved"]
    # Checkpointed parts stand in the graph as one call each.
    assert reported["full"]["calls"] < reported["whole"]["calls"]
    assert reported["full"]["status"]["attention_backend"] == ["math", "applied"]
    assert reported["both"]["graphs"] == 2
    assert reported["static"]["graphs"] == 3
    assert reported["dynamic"]["graphs"] < 3


ATTENDING = (
    PRELUDE
    + """
from torch.nn.functional import scaled_dot_product_attention as attend
taken = attend
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.mha = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 8)
    def forward(self, x):
        x = x + self.mha(x, x, x, need_weights=False)[0]
        h = x.unsqueeze(1)
        return self.out(x + attend(h, h, h).squeeze(1))
torch.manual_seed(0)
model = nn.Sequential(*(Layer() for _ in range(2)))
opt = torch.optim.SGD(model.parameters(), lr=0.01)
train = DataLoader(TensorDataset(torch.randn(32, 5, 8)), batch_size=4)
first = attend is torch._C._nn.scaled_dot_product_attention
for epoch in range(EPOCHS):
    for (x,) in train:
        opt.zero_grad(set_to_none=False)
        model(x).square().mean().backward()
        opt.step()
reported(first=first, plain=attend is torch._C._nn.scaled_dot_product_attention,
     named=F.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention)
"""
)


@pytest.mark.timeout(300)
def test_attention_is_seen_by_whatever_name_and_nothing_of_ours_is_called_once_that_is_known(
    run: Callable[..., Any],
) -> None:
    base = run(ATTENDING.replace("EPOCHS", "2"))
    assert base.faults == ""
    facts = base.facts
    assert facts.attention.calls >= 4 * 3
    assert facts.attention.kernel == "flash"
    assert not facts.attention.restricted
    assert facts.zeroes_gradients
    assert facts.model.blocks.name == "Layer"
    assert facts.values["attention_backend"] == "auto"
    assert facts.values["activation_checkpointing"] == "none"
    assert base.reported == {"first": False, "plain": True, "named": True}
    requested = [patch("attention_backend", "math"), patch("activation_checkpointing", "full")]
    ran = run(ATTENDING.replace("EPOCHS", "10**9"), changes=requested, fidelity=SHORT)
    assert ran.faults == ""
    assert ran.closed is not None, (ran.err, ran.broke)
    for knob, value in (("attention_backend", "math"), ("activation_checkpointing", "full")):
        assert (ran.reading(knob).found, ran.reading(knob).status) == (value, "applied")


@pytest.mark.timeout(300)
def test_apply_carries_them_too_and_refuses_to_train_without_them(run: Callable[..., Any]) -> None:
    requested = [patch("attention_backend", "math"), patch("set_to_none", True), patch("pure_bf16", True)]
    ran = run(ATTENDING.replace("EPOCHS", "2"), changes=requested, measure=False)
    assert ran.code == 0, ran.err
    assert ran.reported["plain"]
    refused = run(
        ATTENDING.replace("EPOCHS", "4"), changes=[patch("attention_backend", "cudnn")], measure=False
    )
    assert refused.code != 0
    assert "scaled_dot_product_attention" in refused.err


EIGHT_BITS = (
    WORLD
    + f"FAKE_TORCHAO = {FAKE_TORCHAO!r}\n"
    + """
os.makedirs("torchao", exist_ok=True)
open("torchao/__init__.py", "w").close()
open("torchao/float8.py", "w").write(FAKE_TORCHAO)
class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.mid, self.last = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 8)
    def forward(self, x): return self.last(self.mid(self.first(x)))
real = torch.compile
def cheap(model=None, **how):
    how.pop("mode", None)
    return real(model, backend="aot_eager_decomp_partition", **how)
torch.compile = cheap
found = {}
for recipe in ("tensorwise", "rowwise"):
    torch._dynamo.reset()
    model = Wide()
    weight, keys = model.mid.weight, list(model.state_dict())
    made = session(fp8=recipe, precision="bf16", compile_mode="default")
    ran = train(model)
    found[recipe] = dict(status=statuses(made), faults=sorted(made.faults.off),
                         layers=[type(m).__name__ for m in model.children()],
                         same=model.mid.weight is weight and list(model.state_dict()) == keys,
                         moved=weight.grad is not None, losses=ran["losses"])
    made.patches.undo_all()
    found[recipe]["undone"] = [type(m).__name__ for m in model.children()]
made = session()
found["asis"] = train(Wide(), made=made)["facts"].values["fp8"]
made.patches.undo_all()
made = session(fp8="rowwise")
held = train(nn.Sequential(nn.Linear(8, 8)), steps=2)
found["small"] = [(r.status, r.reason) for r in made.readings.compute() if r.wanted is not None]
made.patches.undo_all()
made = session(fp8="rowwise")
held = train(Wide(), steps=2)
found["eager"] = [(r.found, r.status) for r in made.readings.compute() if r.wanted is not None]
made.patches.undo_all()
reported(**found)
"""
)


@pytest.mark.timeout(300)
def test_layers_compute_in_8_bits_where_they_are_wide_enough_and_compiled(run: Callable[..., Any]) -> None:
    ran = run(EIGHT_BITS, bare=True, timeout_s=280)
    assert ran.code == 0, ran.err
    reported = ran.reported
    for recipe in ("tensorwise", "rowwise"):
        each = reported[recipe]
        assert each["faults"] == []
        assert each["status"]["fp8"] == [recipe, "applied"]
        assert each["layers"] == ["Linear", "Float8Linear", "Linear"]
        assert each["same"]
        assert each["moved"]
        assert each["undone"] == ["Linear"] * 3
    assert reported["asis"] == "off"
    status, reason = reported["small"][0]
    assert status == "refused"
    assert "multiples of 16" in reason
    assert reported["eager"] == [[None, "not_reached"]]


REAL = (
    WORLD
    + """
made = session(compile_mode="default", activation_checkpointing="full", memory_budget=0.5)
ran = train(Net(blocks=2))
eager = session()
reported(status=statuses(made), losses=ran["losses"])
"""
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_checkpointing_and_the_budget_hold_under_the_real_compiler(run: Callable[..., Any]) -> None:
    ran = run(REAL, bare=True, timeout_s=500)
    assert ran.code == 0, ran.err
    assert all(status == "applied" for _, status in ran.reported["status"].values()), ran.reported
    assert ran.reported["losses"][-1] < ran.reported["losses"][0]
