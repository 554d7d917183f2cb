"""What the logs of all ranks add to the report of rank 0."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from autotune.launch.result.process_reports import ProcessReports
from autotune.launch.result.rank_logs import fold_ranks, straggler, with_rank
from autotune.model.measurement import LossPoint
from autotune.model.rank_figures import RankFigures, sentences, unlike_batches
from autotune.model.trial import Failure, FailureKind
from autotune.protocol.events import Closed, StepRow
from autotune.protocol.rank_log import RankLog, RankWriter, file_name, read_rank_log

if TYPE_CHECKING:
    from pathlib import Path

STEP_NS = 10_000_000


def write(folder: Path, rank: int, samples: int, losses: list[float | None]) -> None:
    writer = RankWriter(folder / file_name(rank))
    for k, loss in enumerate(losses):
        writer.step((k + 1) * STEP_NS, 1000, samples, 0, 400, loss)


def reports_of_rank_0(steps: int, samples: int, losses: list[float]) -> ProcessReports:
    """Rank 0 multiplies its own samples by the number of ranks."""
    reported = ProcessReports()
    reported.rows = [StepRow(t_ns=(k + 1) * STEP_NS, wait_ns=0, samples=2 * samples) for k in range(steps)]
    trace = tuple(
        LossPoint(samples=2 * samples * (k + 1), loss=x, t_s=0.01 * k) for k, x in enumerate(losses)
    )
    reported.closed[0] = Closed(
        trial=0,
        begin_ns=0,
        end_ns=steps * STEP_NS,
        ended="limit",
        steady="steady",
        first_step_ns=STEP_NS,
        compile_s=0.0,
        loss=trace,
    )
    return reported


def test_samples_of_a_step_are_the_sum_over_ranks_with_unlike_batches(tmp_path: Path) -> None:
    write(tmp_path, 0, 8, [1.0] * 4)
    write(tmp_path, 1, 6, [3.0] * 4)
    reported = reports_of_rank_0(4, 8, [1.0] * 4)
    fold_ranks(reported, tmp_path, 2)
    assert [row.samples for row in reported.rows] == [14, 14, 14, 14]
    assert [point.samples for point in reported.closed[0].loss] == [14, 28, 42, 56]


def test_the_loss_is_the_mean_over_the_ranks_that_computed_one(tmp_path: Path) -> None:
    write(tmp_path, 0, 8, [1.0, 1.0])
    write(tmp_path, 1, 8, [3.0, None])
    reported = reports_of_rank_0(2, 8, [1.0, 1.0])
    fold_ranks(reported, tmp_path, 2)
    assert [point.loss for point in reported.closed[0].loss] == [2.0, 1.0]


def test_a_step_that_a_killed_rank_did_not_log_counts_as_its_last_one(tmp_path: Path) -> None:
    write(tmp_path, 0, 8, [1.0] * 4)
    write(tmp_path, 1, 6, [1.0] * 3)
    reported = reports_of_rank_0(4, 8, [1.0] * 4)
    fold_ranks(reported, tmp_path, 2)
    assert [row.samples for row in reported.rows] == [14] * 4


def test_memory_is_the_maximum_over_ranks(tmp_path: Path) -> None:
    for rank, size in ((0, 100), (1, 300)):
        writer = RankWriter(tmp_path / file_name(rank))
        writer.step(STEP_NS, 0, 8, 0, None, None)
        writer.device(rank)
        writer.peak(size)
    reported = reports_of_rank_0(1, 8, [1.0])
    fold_ranks(reported, tmp_path, 2)
    assert reported.closed[0].allocator_peak_bytes == 300
    assert [log.device for log in reported.ranks] == ["cuda:0", "cuda:1"]


def test_without_the_log_of_a_rank_the_count_of_rank_0_stays(tmp_path: Path) -> None:
    write(tmp_path, 0, 8, [1.0] * 2)
    reported = reports_of_rank_0(2, 8, [1.0] * 2)
    fold_ranks(reported, tmp_path, 2)
    assert [row.samples for row in reported.rows] == [16, 16]


def test_a_torn_last_record_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, 1, 8, [1.0] * 3)
    path = tmp_path / file_name(1)
    path.write_bytes(path.read_bytes()[:-5])
    log = read_rank_log(tmp_path, 1)
    assert log is not None
    assert len(log.t_ns) == 2


def test_a_loss_that_is_read_later_belongs_to_its_own_step(tmp_path: Path) -> None:
    write(tmp_path, 1, 8, [None, None])
    writer = RankWriter(tmp_path / file_name(1))
    writer.step(STEP_NS, 0, 8, 0, 0, None)
    writer.step(2 * STEP_NS, 0, 8, 0, 0, None)
    writer.loss(0, 2.5)
    log = read_rank_log(tmp_path, 1)
    assert log is not None
    assert log.losses == [2.5, None]


class TestStraggler:
    def test_the_rank_that_waits_least_is_named_with_what_the_others_wait_beyond_it(self) -> None:
        blocks = [[0.30 + 0.01 * k, 0.05, 0.30] for k in range(4)]
        found = straggler(["cuda:0", "cuda:1", "cuda:2"], blocks)
        assert found is not None
        assert (found.rank, found.device) == (1, "cuda:1")
        assert found.wait_frac == pytest.approx(0.2575)
        assert found.low < found.wait_frac < found.high

    def test_ranks_that_wait_alike_have_no_straggler(self) -> None:
        assert straggler(["cpu", "cpu"], [[0.21, 0.20], [0.20, 0.21], [0.21, 0.20]]) is None

    def test_ranks_that_are_late_in_turn_have_none(self) -> None:
        assert straggler(["cpu", "cpu"], [[0.4, 0.0], [0.0, 0.4], [0.4, 0.0], [0.0, 0.3]]) is None


def test_a_diverged_run_names_the_rank_and_step_where_the_loss_broke_first() -> None:
    logs = (
        RankLog(rank=0, losses=[1.0, 1.0, math.nan]),
        RankLog(rank=1, losses=[1.0, math.nan, math.nan]),
    )
    failure = with_rank(Failure(kind=FailureKind.DIVERGED, message="the loss became nan"), logs)
    assert failure.message == "the loss became nan (first in rank 1, at step 2)"
    other = Failure(kind=FailureKind.CRASH_EXIT, message="exit code 1")
    assert with_rank(other, logs) is other


def rank(number: int, samples: float, blocked: float | None) -> RankFigures:
    return RankFigures(
        rank=number,
        device="cpu",
        steps=10,
        samples_per_step=samples,
        input_wait_frac=0.0,
        communication_frac=blocked,
        gradient_bytes=4 * 2**20,
    )


def test_sentences_give_communication_bytes_and_unlike_batches() -> None:
    ranks = (rank(0, 8.0, 0.4), rank(1, 6.0, 0.2))
    text = " ".join(sentences(ranks, None))
    assert "30 % of a step, 20 % without waiting" in text
    assert "4 MiB of gradients" in text
    assert "6 to 8 samples" in text
    assert unlike_batches((rank(0, 8.0, None), rank(1, 8.0, None))) is None
    assert sentences((), None) == []
