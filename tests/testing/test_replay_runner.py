"""Runs drawn from a recorded table: which process, what it costs, which failures; deterministic by seed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import recorded_world

from autotune.clock import SimulatedClock
from autotune.launch.fake import COMPUTE_BOUND
from autotune.launch.fork_pool import MOST_SERVERS
from autotune.model.change import Change, Patch
from autotune.model.config import Config
from autotune.model.measurement import Measurement
from autotune.model.trial import Assignment, Failure, FailureKind, Fidelity, Launch, Segment, StartMode
from autotune.testing.replay_runner import NotRecorded, ReplayRunner
from autotune.testing.runners import RunnerContract

FIDELITY = Fidelity(
    min_window_s=1, max_window_s=3, min_steps=10, target_width=0.02, setup_s=60, deadline_s=300
)
BF16 = Config({"precision": "bf16"})
COMPILED = Config({"compile_mode": "default"})
TABLE = recorded_world.table()


def assign(config: Config = BF16, seed: int = 0, limit_bytes: int = 0, **fidelity: Any) -> Assignment:
    launch = Launch(command=(), script="/x.py", argv=(), python="python", cwd="/", env={}, seed=seed)
    segment = Segment(trial=0, config=config, fidelity=replace(FIDELITY, **fidelity))
    return Assignment(
        uid="t0", study_id="s", attempt=1, launch=launch, segments=(segment,), memory_limit_bytes=limit_bytes
    )


def run(runner: ReplayRunner, *args: Any, **more: Any) -> Any:
    (ended,) = runner.run(assign(*args, **more))
    return ended


class TestContract(RunnerContract):
    def make_runner(self) -> ReplayRunner:
        broken = [recorded_world.failed(COMPILED, r, 99, "crash_exit") for r in range(3)]
        return ReplayRunner(replace(TABLE, rows=(*TABLE.rows, *broken)))

    def make_good(self) -> Assignment:
        return assign()

    def make_failing(self) -> Assignment:
        return assign(COMPILED)


def test_a_seed_settles_everything_and_another_seed_draws_otherwise() -> None:
    def course(seed: int) -> list[Any]:
        runner = ReplayRunner(TABLE, seed=seed)
        return [run(runner, seed=n % 3) for n in range(6)]

    assert course(1) == course(1)
    assert course(1) != course(2)


def test_what_is_drawn_hangs_on_the_request_and_not_on_what_others_requested_before() -> None:
    alone, after_others = ReplayRunner(TABLE), ReplayRunner(TABLE)
    for config in recorded_world.CONFIGS:
        if config != BF16:
            run(after_others, config)
    assert run(alone) == run(after_others)


def test_the_clock_moves_by_what_the_process_took_with_its_window_replaced() -> None:
    clock = SimulatedClock()
    ended = run(ReplayRunner(TABLE, clock=clock), target_width=0.0)
    assert clock.now_s() == pytest.approx(ended.seconds)
    # Start, warm-up and end as recorded, a window of three seconds in place of four.
    rest_s = COMPUTE_BOUND.startup_s + 1.0
    assert rest_s + 3.0 <= ended.seconds < rest_s + 3.5
    assert ended.outcome.ended == "limit"


def test_a_window_ends_when_it_is_tight_or_hopeless_and_runs_on_for_the_loss() -> None:
    runner = ReplayRunner(TABLE)
    assert run(runner, target_width=0.5).outcome.ended == "tight"
    hopeless = run(runner, target_width=0.0, dominated_below=1e9).outcome
    assert hopeless.ended == "dominated"
    assert hopeless.window_s < 2.0
    wanted = TABLE.of(BF16)[0].loss_samples[-1]
    longer = run(runner, target_width=0.5, loss_samples=wanted).outcome
    assert longer.loss[-1].samples == wanted
    assert longer.ended == "tight"


def test_what_is_run_for_the_loss_alone_costs_and_adds_nothing_to_the_rate() -> None:
    wanted = TABLE.of(BF16)[0].loss_samples[-1]
    short = run(ReplayRunner(TABLE), target_width=0.5)
    longer = run(ReplayRunner(TABLE), target_width=0.5, loss_samples=wanted)
    assert longer.seconds > short.seconds + 1.0
    assert replace(longer.outcome, loss=short.outcome.loss) == short.outcome


def test_a_rate_is_one_of_the_recorded_processes_within_their_noise() -> None:
    rates = [run(ReplayRunner(TABLE, seed=n)).outcome.throughput.value for n in range(20)]
    truth = COMPUTE_BOUND.throughput(BF16)
    assert all(abs(rate / truth - 1) < 0.06 for rate in rates)
    assert len(set(rates)) == 20


def test_runs_of_one_seed_are_of_one_recorded_repeat_so_their_losses_pair() -> None:
    runner = ReplayRunner(TABLE, seed=5)
    for seed in range(6):
        last = [run(runner, config, seed=seed).outcome.loss[0].loss for config in recorded_world.CONFIGS[:4]]
        assert len(set(last)) == 1
    assert len({run(runner, seed=seed).outcome.loss[0].loss for seed in range(3)}) == 3


def test_where_that_repeat_is_missing_another_is_drawn_without_a_loss() -> None:
    only = recorded_world.row(BF16, 1, 0)
    others = tuple(r for r in TABLE.rows if r.config != BF16)
    runner = ReplayRunner(replace(TABLE, rows=(*others, only)))
    traces = [run(runner, seed=seed).outcome.loss for seed in range(3)]
    assert sorted(bool(trace) for trace in traces) == [False, False, True]


def test_a_compile_is_cold_once_and_warm_after_that() -> None:
    rows = [recorded_world.row(COMPILED, repeat, 50) for repeat in range(3)]
    runner = ReplayRunner(replace(TABLE, rows=(*TABLE.rows, *rows)))
    first, second = run(runner, COMPILED), run(runner, COMPILED, seed=1)
    assert (first.outcome.cold_compile, second.outcome.cold_compile) == (True, False)
    assert first.outcome.compile_s == pytest.approx(40.0)
    assert second.outcome.compile_s == pytest.approx(4.0)
    assert first.seconds - second.seconds > 30.0


@pytest.mark.parametrize("kind", ["crash_exit", "oom_host", "diverged"])
def test_a_failure_is_as_recorded_and_costs_what_it_cost(kind: str) -> None:
    rows = [recorded_world.failed(COMPILED, repeat, 50, kind, 7.0) for repeat in range(3)]
    ended = run(ReplayRunner(replace(TABLE, rows=(*TABLE.rows, *rows))), COMPILED)
    assert ended.outcome.kind.label == kind
    assert ended.seconds == 7.0


@pytest.mark.parametrize(("kind", "seconds"), [("timeout_total", 300.0), ("timeout_progress", 60.0)])
def test_a_hang_costs_what_the_asker_allows(kind: str, seconds: float) -> None:
    rows = [recorded_world.failed(COMPILED, repeat, 50, kind, 999.0) for repeat in range(3)]
    assert run(ReplayRunner(replace(TABLE, rows=(*TABLE.rows, *rows))), COMPILED).seconds == seconds


def test_a_run_ends_at_its_deadline_and_a_start_at_its_own() -> None:
    late = run(ReplayRunner(TABLE), deadline_s=5.0)
    assert (late.outcome.kind, late.seconds) == (FailureKind.TIMEOUT_TOTAL, 5.0)
    slow = run(ReplayRunner(TABLE), setup_s=2.0)
    assert (slow.outcome.kind, slow.seconds) == (FailureKind.TIMEOUT_PROGRESS, 2.0)


def test_a_smaller_machine_runs_out_of_memory() -> None:
    peak = TABLE.of(BF16)[0].memory.peak_bytes or 0
    assert isinstance(run(ReplayRunner(TABLE, limit_bytes=peak)).outcome, Measurement)
    for runner, limit in ((ReplayRunner(TABLE, limit_bytes=peak - 1), 0), (ReplayRunner(TABLE), peak - 1)):
        failure = run(runner, limit_bytes=limit).outcome
        assert isinstance(failure, Failure)
        assert failure.kind is FailureKind.OOM_HOST


def test_what_was_lost_or_disturbed_is_not_drawn() -> None:
    lost = [recorded_world.failed(BF16, r, 60, "infra_lost") for r in range(3)]
    slow = [recorded_world.row(BF16, r, 61, is_disturbed=True, effective_batch=-1.0) for r in range(3)]
    runner = ReplayRunner(replace(TABLE, rows=(*TABLE.rows, *lost, *slow)))
    seen = [run(runner, seed=n % 3).outcome for n in range(12)]
    assert {m.effective_batch for m in seen} == {32.0}


def test_what_was_not_recorded_is_no_failure_but_an_error() -> None:
    with pytest.raises(NotRecorded, match="threads=4"):
        run(ReplayRunner(TABLE), Config({"threads": 4}))


def forked(assignment: Assignment, **variables: str) -> Assignment:
    return replace(assignment, start=StartMode.FORK, launch=replace(assignment.launch, env=variables))


def test_a_fork_saves_its_share_of_the_start_once_its_server_is_there() -> None:
    runner = ReplayRunner(TABLE, forked_start=0.25)
    fresh = run(ReplayRunner(TABLE, forked_start=0.25))
    waited, served = (next(runner.run(forked(assign()))) for _ in range(2))
    assert waited.seconds == pytest.approx(fresh.seconds)
    start_s = fresh.outcome.startup_s
    assert served.outcome.startup_s == pytest.approx(0.25 * start_s)
    again = ReplayRunner(TABLE)
    run(again)
    plain = run(again)
    assert plain.seconds - served.seconds == pytest.approx(0.75 * start_s)
    assert served.outcome.throughput == plain.outcome.throughput
    assert {waited.start, served.start} == {StartMode.FORK}
    assert fresh.start is StartMode.COLD


def test_every_environment_waits_for_a_server_of_its_own_and_only_the_last_few_are_kept() -> None:
    runner = ReplayRunner(TABLE, forked_start=0.1)

    def start_s(value: str) -> float:
        return round(next(runner.run(forked(assign(), N=value))).outcome.startup_s, 6)

    whole = start_s("0")
    assert start_s("0") == pytest.approx(0.1 * whole)
    others = [str(n) for n in range(1, MOST_SERVERS + 1)]
    assert {start_s(value) for value in others} == {whole}
    assert start_s(others[0]) == pytest.approx(0.1 * whole)
    assert start_s("0") == whole


def test_the_first_compile_of_an_environment_is_forked_from_the_plain_server() -> None:
    rows = [
        replace(r, config=COMPILED, order=99, compile_s=5.0, compile_cache="cold")
        for r in TABLE.rows
        if r.config == BF16
    ]
    runner = ReplayRunner(replace(TABLE, rows=(*TABLE.rows, *rows)), forked_start=0.1)
    change = Change(knob="compile_mode", value="default", delivered="default", spelling=Patch())

    def start_s(config: Config) -> float:
        planned = forked(assign(config))
        if config == COMPILED:
            planned = replace(planned, launch=replace(planned.launch, changes=(change,)))
        return round(next(runner.run(planned)).outcome.startup_s, 6)

    whole = start_s(BF16)
    tenth = pytest.approx(0.1 * whole)
    assert [start_s(COMPILED) for _ in range(3)] == [tenth, whole, tenth]


def test_stopping_ends_the_run_as_the_users_wish() -> None:
    runner = ReplayRunner(TABLE)
    runs = runner.run(assign())
    sleep, runner.clock.sleep = runner.clock.sleep, lambda _s: runner.stop()  # type: ignore[method-assign]
    (ended,) = runs
    runner.clock.sleep = sleep  # type: ignore[method-assign]
    assert ended.outcome.kind is FailureKind.KILLED_USER


def test_a_machine_that_is_faster_trains_faster_and_starts_as_it_did() -> None:
    reported: list[float] = []

    def machine(at_s: float) -> float:
        reported.append(at_s)
        return 0.2 if at_s < 5.0 else -0.2

    quiet, runner = ReplayRunner(TABLE), ReplayRunner(TABLE, machine=machine)
    as_ever = [run(quiet, config, target_width=0.0) for config in recorded_world.CONFIGS[:2]]
    first, second = (run(runner, config, target_width=0.0) for config in recorded_world.CONFIGS[:2])
    assert reported == pytest.approx([0.0, first.seconds])
    for mine, plain, faster in ((first, as_ever[0], 0.2), (second, as_ever[1], -0.2)):
        ratio = mine.outcome.throughput.value / plain.outcome.throughput.value
        assert math.log(ratio) == pytest.approx(faster, abs=0.05)
        assert mine.outcome.startup_s == plain.outcome.startup_s
    broken = [recorded_world.failed(COMPILED, r, 99, "crash_exit") for r in range(3)]
    failing = ReplayRunner(replace(TABLE, rows=(*TABLE.rows, *broken)), machine=machine)
    assert run(failing, COMPILED).seconds == 3.0
