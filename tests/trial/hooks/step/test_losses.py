"""How a loss is reduced over the batch, judged by the graph that leads from it to what is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.trial.hooks.model.forward_wrapper import ForwardWrapper
from autotune.trial.hooks.step.losses import Losses
from autotune.trial.runtime.undo import Undo

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def judge() -> Any:
    """`judge(loss_of)` with `loss_of(functional, outputs, weight)`."""
    torch = pytest.importorskip("torch")
    state = SimpleNamespace(
        capturing=lambda: False, here=lambda: True, depth=0, faults=SimpleNamespace(off=set(), note=print)
    )
    root = SimpleNamespace(detecting=True, awaits_backward=False, swap_while_detecting=lambda *_: None)

    def judged(loss_of: Any, rows: int = 8) -> str:
        undo = Undo()
        losses = Losses(state, root)  # type: ignore[arg-type]
        losses.install(torch, undo.assign)
        try:
            weight = torch.randn(6, 6, requires_grad=True)
            out = torch.randn(rows, 6) @ weight
            losses.returned((out, [out.detach()]), rows)
            loss = loss_of(torch, torch.nn.functional, out, weight)
            losses.backward(loss)
        finally:
            undo.undo_all()
        return losses.reduction

    return judged


def pairs(z: Any) -> Any:
    """Every sample less every other."""
    return z[:, None] - z[None]


def layer(torch: Any, z: Any, **options: Any) -> Any:
    """As many classes as samples."""
    return torch.nn.Linear(6, 8, **options)(z)


def penalty(torch: Any) -> Any:
    """A term of the size of some weights, as it is added to a loss by hand."""
    weights = [torch.nn.Parameter(torch.ones(3, 3)), torch.nn.Parameter(torch.ones(3))]
    return sum(w.pow(2).sum() for w in weights) + weights[0].norm() + weights[1].abs().mean()


def over_the_others(torch: Any, functional: Any, z: Any, _weight: Any) -> Any:
    """Logits of every sample against all others, as in sthalles/SimCLR: one column less than rows."""
    similar = z @ z.T
    logits = similar[~torch.eye(len(z)).bool()].view(len(z), -1)
    return functional.cross_entropy(logits, torch.zeros(len(z), dtype=torch.long))


@pytest.mark.parametrize(
    ("kind", "loss_of"),
    [
        ("mean", lambda t, f, z, w: f.mse_loss(z, t.zeros_like(z))),
        ("mean", lambda t, f, z, w: f.mse_loss(z, t.zeros_like(z)) / 4 + 0.5 * f.l1_loss(z, t.ones_like(z))),
        ("sum", lambda t, f, z, w: f.mse_loss(z, t.zeros_like(z), reduction="sum")),
        # A variational autoencoder, whose divergence is a sum over the batch.
        ("unknown", lambda t, f, z, w: f.mse_loss(z, t.zeros_like(z)) + 0.02 * t.sum(z.exp() - z)),
        ("unknown", lambda t, f, z, w: f.mse_loss(z, t.zeros_like(z), reduction="sum") + w.norm()),
        ("unknown", lambda t, f, z, w: f.mse_loss(z, t.zeros_like(z)) * z.detach().std() * w.sum()),
        ("unknown", lambda t, f, z, w: f.mse_loss(z, t.zeros_like(z)) * len(z)),
        ("mean", lambda t, f, z, w: (z - t.ones_like(z)).abs().mean()),
        ("mean", lambda t, f, z, w: t.mean((z - 1) ** 2) - f.mse_loss(z, t.ones_like(z))),
        ("mean", lambda t, f, z, w: (z[:, 0] - 1).pow(2).mean() + z.exp().sum(-1).sqrt().mean()),
        ("sum", lambda t, f, z, w: (z - 1).abs().sum()),
        ("unknown", lambda t, f, z, w: 0.5 * (z - 1).abs().mean()),
        ("unknown", lambda t, f, z, w: (z - 1).abs().mean() + (z - 1).abs().sum()),
        ("unknown", lambda t, f, z, w: (z.abs() * t.full((len(z), 1), 1 / len(z))).sum()),
        ("unknown", lambda t, f, z, w: (z - z.mean(0)).abs().mean()),
        ("unknown", lambda t, f, z, w: (z[1:] - z[:-1]).abs().mean()),
        ("unknown", lambda t, f, z, w: (z[:, :1] - t.ones(len(z))).abs().mean()),
        ("unknown", lambda t, f, z, w: (z @ z.T).abs().mean()),
        ("unknown", lambda t, f, z, w: z[z > 0].mean()),
        ("unknown", lambda t, f, z, w: z.abs().mean() + w.abs().mean()),
        ("mean", lambda t, f, z, w: f.mse_loss(z, t.zeros_like(z)) + 0.01 * penalty(t)),
        ("mean", lambda t, f, z, w: (z - 1).abs().mean() + 5.0 * penalty(t)),
        ("unknown", lambda t, f, z, w: 0.5 * f.mse_loss(z, t.zeros_like(z)) + penalty(t)),
        ("unknown", lambda t, f, z, w: f.mse_loss(z, t.zeros_like(z), reduction="sum") + penalty(t)),
        # Samples take part, as a constant or with a gradient of their own.
        ("unknown", lambda t, f, z, w: f.l1_loss(z, z * 0) + (t.ones(6) * t.nn.Parameter(t.ones(6))).sum()),
        ("unknown", lambda t, f, z, w: f.l1_loss(z, z * 0) + t.ones(8, requires_grad=True).sum()),
        ("unknown", lambda t, f, z, w: z.abs().sum(1).mean() - z.view(-1).abs().mean()),
        ("unknown", lambda t, f, z, w: (-pairs(z).square().sum(-1)).exp().sum(1).log().mean()),
        ("unknown", lambda t, f, z, w: z[:3].abs().mean()),
        ("unknown", lambda t, f, z, w: pairs(z).abs().mean()),
        ("unknown", lambda t, f, z, w: pairs(z).abs().sum(1).mean()),
        ("unknown", lambda t, f, z, w: (z.sum(1)[None] - t.ones(3, 1)).abs().mean()),
        ("unknown", over_the_others),
        ("unknown", lambda t, f, z, w: f.cross_entropy(z @ z.T, t.arange(len(z)))),
        ("unknown", lambda t, f, z, w: f.cross_entropy(z @ t.randn(6, 8), t.zeros(len(z)).long())),
        ("mean", lambda t, f, z, w: f.cross_entropy(layer(t, z), t.zeros(len(z)).long())),
        ("sum", lambda t, f, z, w: f.cross_entropy(layer(t, z).double(), t.arange(8), reduction="sum")),
        ("mean", lambda t, f, z, w: f.cross_entropy(layer(t, z, bias=False), t.arange(8))),
        ("unknown", lambda t, f, z, w: f.binary_cross_entropy_with_logits(z @ z.T, t.eye(len(z)))),
    ],
)
def test_only_a_loss_that_is_made_of_known_ones_alone_is_known(judge: Any, kind: str, loss_of: Any) -> None:
    assert judge(loss_of) == kind


@pytest.mark.parametrize(("rows", "kind"), [(8, "sum"), (6, "unknown")])
def test_as_many_samples_as_features_may_be_pairs(judge: Any, rows: int, kind: str) -> None:
    assert judge(lambda t, f, z, w: ((z - 1) ** 2).sum(), rows) == kind


@pytest.fixture
def losses() -> Any:
    torch = pytest.importorskip("torch")
    state = SimpleNamespace(
        capturing=lambda: False, here=lambda: True, depth=0, faults=SimpleNamespace(off=set(), note=print)
    )
    root = SimpleNamespace(detecting=True, awaits_backward=False, swap_while_detecting=lambda *_: None)
    undo = Undo()
    made: Any = Losses(state, root)  # type: ignore[arg-type]
    made.install(torch, undo.assign)
    yield SimpleNamespace(torch=torch, state=state, root=root, of=made, z=made_of(torch))
    undo.undo_all()


def made_of(torch: Any) -> Any:
    return torch.randn(8, 6) @ torch.randn(6, 6, requires_grad=True)


def test_what_has_not_a_row_for_every_sample_is_no_output_of_theirs(losses: Any) -> None:
    apart = losses.z[:5].sum(1)
    losses.of.returned((losses.z, apart), 8)
    losses.of.backward(apart.abs().mean())
    assert losses.of.reduction == "unknown"


@pytest.mark.parametrize("rows", [1, 8])
def test_a_loss_that_a_model_returns_in_a_row_of_its_own_is_not_taken_for_samples(
    losses: Any, rows: int
) -> None:
    loss = losses.z.sum().unsqueeze(0)
    losses.of.returned(loss, rows)
    losses.of.backward(loss.mean())
    assert losses.of.reduction == "unknown"


def test_what_a_model_returns_beside_a_loss_of_its_own_is_not_taken_for_samples(losses: Any) -> None:
    losses.state.depth = 1
    apart = losses.torch.nn.functional.mse_loss(losses.z, losses.torch.zeros(8, 6), reduction="none").sum(1)
    losses.state.depth = 0
    losses.of.returned(apart, 8)
    losses.of.backward(apart.mean())
    assert losses.of.reduction == "unknown"
    losses.of.returned(losses.z, 8)
    losses.of.backward(losses.z.mean())
    assert losses.of._verdicts == ["unknown", "mean"]


def test_what_was_judged_before_detection_settled_stays(losses: Any) -> None:
    losses.of.backward(losses.torch.nn.functional.mse_loss(losses.z, losses.torch.zeros(8, 6)))
    losses.of.settle()
    losses.of.backward(losses.z.norm())
    assert losses.of.reduction == "mean"


def called(losses: Any, module: Any, out: Any) -> None:
    """A root in this mode was called with gradients on, and returned this."""
    call: Any = SimpleNamespace(_root=losses.root, module=lambda: module)
    ForwardWrapper._drop_graphs(call)
    ForwardWrapper._report_output(call, out, 8)


def test_the_graphs_of_an_evaluation_with_gradients_are_let_go(losses: Any) -> None:
    evaluated = SimpleNamespace(training=False)
    for _ in range(5):
        called(losses, evaluated, losses.z * 2.0)
        losses.torch.nn.functional.mse_loss(losses.z, losses.torch.zeros(8, 6))
    assert len(losses.of._outputs) == 1
    assert len(losses.of._calls) == 1


def test_a_model_that_is_trained_in_evaluation_mode_has_its_loss_judged(losses: Any) -> None:
    """As `from_pretrained` hands it out."""
    for _ in range(3):
        out = losses.z * 2.0
        called(losses, SimpleNamespace(training=False), out)
        losses.of.backward((out**2).mean())
    assert losses.of.reduction == "mean"


def test_a_helper_that_is_requested_in_the_middle_of_a_step_costs_no_loss(losses: Any) -> None:
    out = losses.z * 2.0
    called(losses, SimpleNamespace(training=True), out)
    called(losses, SimpleNamespace(training=False), losses.z * 3.0)
    losses.of.backward((out**2).mean())
    assert losses.of.reduction == "mean"


@pytest.mark.parametrize(
    ("scale", "loss_of"),
    [
        (1.0, lambda f, z: f.mse_loss(z, z.detach() + 1)),
        (0.25, lambda f, z: f.mse_loss(z, z.detach() + 1) / 4),
        (0.25, lambda f, z: (f.mse_loss(z, z.detach() + 1) + f.l1_loss(z, z.detach() + 1)) / 4),
        (1.0, lambda f, z: z.abs().mean()),
        (None, lambda f, z: z.abs().mean() / 4),
        (None, lambda f, z: f.mse_loss(z, z.detach() + 1, reduction="sum")),
    ],
)
def test_what_a_mean_is_multiplied_by_is_reported(losses: Any, scale: float | None, loss_of: Any) -> None:
    losses.of.returned(losses.z, 8)
    losses.of.backward(loss_of(losses.torch.nn.functional, losses.z))
    assert losses.of.scale == (scale and pytest.approx(scale))
