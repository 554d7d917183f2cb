"""How a loss is reduced over the batch, judged by the graph that leads from it to what is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autotune.trial.losses import Losses
from autotune.trial.undo import Undo

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def judge() -> Any:
    """`judge(loss_of)` with `loss_of(functional, outputs, weight)`."""
    torch = pytest.importorskip("torch")
    state = SimpleNamespace(
        capturing=lambda: False, here=lambda: True, depth=0, faults=SimpleNamespace(off=set(), note=print)
    )
    root = SimpleNamespace(detecting=True, swap_while_detecting=lambda *_: None)

    def judged(loss_of: Any, rows: int = 8) -> str:
        undo = Undo()
        losses = Losses(state, root)  # type: ignore[arg-type]
        losses.install(torch, undo.assign)
        try:
            weight = torch.randn(6, 6, requires_grad=True)
            out = torch.randn(rows, 6) @ weight
            losses.returned((out, [out.detach()]))
            loss = loss_of(torch, torch.nn.functional, out, weight)
            losses.backward(loss)
        finally:
            undo.undo_all()
        return losses.reduction

    return judged


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
        ("unknown", lambda t, f, z, w: z.abs().sum(1).mean() - z.view(-1).abs().mean()),
        ("unknown", over_the_others),
        ("unknown", lambda t, f, z, w: f.binary_cross_entropy_with_logits(z @ z.T, t.eye(len(z)))),
    ],
)
def test_only_a_loss_that_is_made_of_known_ones_alone_is_known(judge: Any, kind: str, loss_of: Any) -> None:
    assert judge(loss_of) == kind
