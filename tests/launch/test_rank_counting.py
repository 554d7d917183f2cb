"""What is counted on every rank of real processes over gloo: samples, bytes, waiting, losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.answer.bottleneck import evidence_of, judge
from autotune.model.measurement import Measurement
from autotune.model.trial import Failure, FailureKind
from tests.launch.test_ranks import TRAIN, launch, outcome

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.torch, pytest.mark.thorough, pytest.mark.timeout(300)]

GRADIENT_BYTES = 4 * (24 * 64 + 64 + 64 + 1)
"""Of the model of `TRAIN`, in float32."""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "project" / "train.py"
    path.parent.mkdir()
    return path


def measured(tmp_path: Path, script: Path, text: str, *, batch: int = 8) -> Measurement:
    script.write_text(text)
    found = outcome(tmp_path, launch(script, batch=batch))
    assert isinstance(found, Measurement), found
    assert [figures.rank for figures in found.ranks] == [0, 1]
    assert {figures.device for figures in found.ranks} == {"cpu"}
    return found


def test_unlike_batches_are_summed_over_the_ranks(tmp_path: Path, script: Path) -> None:
    text = TRAIN.replace("batch_size=args.batch_size", "batch_size=args.batch_size - 3 * rank")
    # The size is the script's own: a value of ours has to hold in every rank.
    found = measured(tmp_path, script, text, batch=0)
    assert found.effective_batch == pytest.approx(29, rel=0.05)
    sizes = [figures.samples_per_step for figures in found.ranks]
    assert sizes == [pytest.approx(16, rel=0.05), pytest.approx(13, rel=0.05)]
    assert any("unlike batches" in reason for reason in judge(evidence_of(found)).reasons)


def test_a_planted_straggler_is_named_with_the_share_that_the_other_waits(
    tmp_path: Path, script: Path
) -> None:
    text = TRAIN.replace("optimizer.zero_grad()", "optimizer.zero_grad(); time.sleep(0.03 * rank)")
    found = measured(tmp_path, script, text)
    assert found.straggler is not None
    assert found.straggler.rank == 1
    assert 0.0 < found.straggler.low <= found.straggler.wait_frac <= 1.0
    assert any("Rank 1 (cpu) is a straggler" in reason for reason in judge(evidence_of(found)).reasons)


BY_HAND = """for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step()"""
UNWRAPPED = TRAIN.replace("model = DDP(", "model = (")


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (TRAIN, GRADIENT_BYTES),
        (
            TRAIN.replace(
                "optimizer = torch",
                "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook\n"
                "model.register_comm_hook(None, fp16_compress_hook)\noptimizer = torch",
            ),
            GRADIENT_BYTES // 2,
        ),
        (
            TRAIN.replace(
                "nn.functional.mse_loss(model(x), y).backward()",
                "with model.no_sync():\n            nn.functional.mse_loss(model(x), y).backward()\n"
                "        nn.functional.mse_loss(model(x), y).backward()",
            ),
            GRADIENT_BYTES,
        ),
        (UNWRAPPED.replace("optimizer.step()", BY_HAND), GRADIENT_BYTES),
    ],
    ids=["ddp", "fp16_hook", "no_sync", "by_hand"],
)
def test_gradient_bytes_of_a_step_are_those_counted_by_hand(
    tmp_path: Path, script: Path, text: str, size: int
) -> None:
    found = measured(tmp_path, script, text)
    assert [figures.gradient_bytes for figures in found.ranks] == [size, size]
    assert all(figures.communication_frac is not None for figures in found.ranks)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_loss_that_breaks_in_one_rank_names_that_rank(tmp_path: Path, script: Path, rank: int) -> None:
    broken = f"(loss * float('nan') if rank == {rank} and steps > 4 else loss).backward()"
    text = TRAIN.replace(
        "nn.functional.mse_loss(model(x), y).backward()",
        f"loss = nn.functional.mse_loss(model(x), y); {broken}",
    )
    script.write_text(text)
    found = outcome(tmp_path, launch(script, batch=8))
    assert isinstance(found, Failure), found
    assert found.kind is FailureKind.DIVERGED
    assert f"first in rank {rank}, at step 6" in found.message
