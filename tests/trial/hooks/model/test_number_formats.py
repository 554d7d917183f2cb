"""In which number format a model multiplies, whatever its layers hand on."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE, SHORT

from autotune.model.change import Change, Patch
from autotune.trial.hooks.model import number_formats

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.torch

BF16 = Change(knob="precision", value="bf16", spelling=Patch())


def test_what_most_is_computed_in_is_the_format_and_of_equals_the_wider_one() -> None:
    assert number_formats.main_format(Counter()) is None
    assert number_formats.main_format(Counter(bf16=7, fp32=6)) == "bf16"
    assert number_formats.main_format(Counter(bf16=6, fp32=7)) == "fp32"
    assert number_formats.main_format(Counter(bf16=7, fp32=7)) == "fp32"


def recurrent(torch: Any, kind: str, packed: bool) -> Any:
    layer = getattr(torch.nn, kind)(8, 16, num_layers=2, batch_first=True)
    frames = torch.randn(4, 6, 8)
    if packed:
        frames = torch.nn.utils.rnn.pack_padded_sequence(frames, torch.tensor([6, 5, 4, 2]), batch_first=True)
    return layer(frames)


def convolved(torch: Any) -> Any:
    return torch.nn.Conv2d(3, 8, 3)(torch.randn(2, 3, 8, 8))


def attended(torch: Any) -> Any:
    return torch.nn.MultiheadAttention(8, 2, batch_first=True)(*[torch.randn(2, 5, 8)] * 3)


def by_hand(torch: Any) -> Any:
    return torch.randn(4, 8) @ torch.randn(8, 8, requires_grad=True)


def elementwise(torch: Any) -> Any:
    return torch.randn(4, 8) * torch.randn(8, requires_grad=True)


@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "made",
    [
        lambda t: recurrent(t, "GRU", packed=True),
        lambda t: recurrent(t, "GRU", packed=False),
        lambda t: recurrent(t, "LSTM", packed=True),
        lambda t: recurrent(t, "LSTM", packed=False),
        lambda t: recurrent(t, "RNN", packed=False),
        convolved,
        attended,
        by_hand,
    ],
    ids=["packed GRU", "GRU", "packed LSTM", "LSTM", "RNN", "convolution", "attention", "by hand"],
)
def test_products_are_found_in_the_graph_of_a_result(made: Any, half: bool) -> None:
    import torch

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
        try:
            result = made(torch)
        except RuntimeError as error:
            if half and "could not create a primitive" in str(error):
                pytest.skip("this processor has no such operation in bf16")
            raise
        found = number_formats.in_graph(result)
    assert set(found) == {"bf16" if half else "fp32"}


def test_what_is_no_product_has_no_format_to_tell() -> None:
    import torch

    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert number_formats.in_graph(elementwise(torch)) == Counter()
        assert number_formats.in_graph(elementwise(torch).detach()) == Counter()
    assert number_formats.in_graph(None) == Counter()


def test_results_of_many_forms_lead_to_their_graph() -> None:
    import torch

    class Result:
        def __init__(self) -> None:
            self.logits = by_hand(torch)

    for out in (Result(), {"a": [by_hand(torch)]}, (None, by_hand(torch))):
        assert number_formats.in_graph(out) == Counter(fp32=32)


@pytest.mark.slow
def test_products_are_found_in_what_is_compiled() -> None:
    import torch

    found: list[Counter[str]] = []

    def compiler(graph: Any, _inputs: Any) -> Any:
        found.append(number_formats.in_compiled(graph))
        return graph.forward

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.compile(model, backend=compiler)(torch.randn(4, 8))
        torch.compile(lambda x: (x @ x).sum() + x.matmul(x).sum(), backend=compiler)(torch.randn(4, 4))
    assert found == [Counter(bf16=4 * 16 + 4), Counter(bf16=32)]
    # Looking at a size that is a symbol must not make a number of it.
    found.clear()
    doubled = torch.compile(lambda x: x @ x.T, backend=compiler, dynamic=True)
    for rows in (4, 5, 6):
        doubled(torch.randn(rows, 3))
    assert found == [Counter(fp32=16)]


MODELS = (
    PRELUDE
    + """
from torch.nn.utils.rnn import pack_padded_sequence
kind = sys.argv[1]
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(8, 16, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(32, 4)
    def forward(self, x):
        packed = pack_padded_sequence(x, torch.tensor([6, 5, 4, 2]), batch_first=True)
        _, last = self.gru(packed)
        return self.head(torch.cat([last[-2], last[-1]], 1))
class Refusing(Recurrent):
    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x)
class Scaling(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
    def forward(self, x):
        return (x * self.scale)[:, 0, :4]
model = {"recurrent": Recurrent, "refusing": Refusing, "scaling": Scaling}[kind]()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(4, 6, 8), torch.randint(0, 4, (4,))
for i in range(10**9):
    optimizer.zero_grad(); F.cross_entropy(model(x), y).backward(); optimizer.step()
"""
)


@pytest.mark.parametrize(("kind", "applied"), [("recurrent", True), ("refusing", False), ("scaling", False)])
def test_a_trial_counts_as_bf16_where_it_multiplies_in_bf16(
    run: Callable[..., Any], kind: str, applied: bool
) -> None:
    ran = run(MODELS, argv=[kind], changes=[BF16], fidelity=SHORT)
    assert ran.faults == ""
    if applied:
        assert ran.broke is None
        assert (ran.reading("precision").status, ran.reading("precision").found) == ("applied", "bf16")
    else:
        assert (ran.broke.kind, ran.broke.knob) == ("config_rejected", "precision")
        assert ran.broke.message == "Requested bf16, found fp32."
