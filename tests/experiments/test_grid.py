"""Grid files, their plans, and rows: everything of the recorder that runs nothing."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grid
import grid_facts
import pytest
import record
from alone import environment

from autotune.clock import SystemClock
from autotune.errors import DiskFull, UsageError
from autotune.knobs.registry import knobs_for
from autotune.launch.result.host_samples import HostSamples
from autotune.launch.result.measure import measure
from autotune.launch.result.process_reports import ProcessReports
from autotune.launch.runner import TrialResult
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import LoaderFacts, RunFacts
from autotune.model.measurement import Contamination, LossPoint, Reading
from autotune.model.study import SpaceRequest
from autotune.model.trial import Failure, FailureKind
from autotune.protocol.events import Broke, Closed, Compiling, ReadBack, StepRow, Steps
from autotune.space.build_space import build_space
from autotune.testing.table import (
    Blocks,
    Growth,
    ProtocolPart,
    Table,
    TableHeader,
    TableRow,
    WorkloadPart,
    decode,
)

S = 1_000_000_000
RECORDED = sorted(
    path
    for path in grid_facts.GRIDS.glob("*/*.jsonl")
    if path.parent.name in grid_facts.NAMES and "." not in path.stem
)
"""Tables of workloads for a CPU, those of an earlier grid aside."""


# Grid files ------------------------------------------------------------------------------------


def space_of(name: str) -> tuple[grid.Grid, Any, dict[str, str]]:
    requested = grid.read_grid(grid_facts.GRIDS / name / "grid.json")
    space, refusals = build_space(requested.request(), grid_facts.facts(name), knobs_for(requested.request()))
    return requested, space, refusals


@pytest.mark.parametrize("name", grid_facts.NAMES)
def test_a_committed_grid_has_enough_that_best_may_use(name: str) -> None:
    requested, space, _ = space_of(name)
    configs, left_out = grid.valid_configs(requested, space)
    assert requested.workload == name
    assert configs[0] == Config()
    assert len(set(configs)) == len(configs) >= 100, left_out
    assert all(space.effect(config) is not Effect.TRAINING for config in configs)
    assert all("effective_batch" not in config for config in configs)
    assert 5 <= sum(map(grid.compiles, configs)) <= len(configs) // 6
    together = [knob for knob, values in requested.parts[0].items() if len(values) > 1]
    assert len(together) >= 3, "at least three knobs are crossed in full"
    assert len(requested.seeds) >= 3


@pytest.mark.parametrize("path", grid_facts.FILES, ids=lambda path: path.parent.name)
def test_a_committed_grid_is_of_a_script_that_is_there_and_of_knobs_that_exist(path: Path) -> None:
    requested = grid.read_grid(path)
    folders = (grid_facts.WORKLOADS, grid_facts.WORKLOADS.parent / "gpu" / "workloads")
    assert any((folder / f"{requested.workload}.py").is_file() for folder in folders)
    assert requested.workload == path.parent.name
    assert set(requested.knobs) <= set(knobs_for(requested.request()))


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_was_recorded_is_still_in_the_committed_grid(path: Path) -> None:
    with path.open("rb") as lines:
        # The header alone: some tables are not to be opened.
        header = decode(lines.readline(), source=path.name).header
    requested = grid.read_grid(path.parent / "grid.json")
    space, _ = build_space(requested.request(), header.facts, knobs_for(requested.request()))
    configs, left_out = grid.valid_configs(requested, space)
    assert set(header.configs) <= set(configs)
    assert len(configs) >= 100, left_out
    assert requested.fidelity() == header.protocol.fidelity


def test_the_readme_counts_what_is_valid() -> None:
    message = [line.split("|")[1:-1] for line in (grid_facts.GRIDS / "README.md").read_text().splitlines()]
    reported = {
        cells[0].strip(): cells[1:] for cells in message if len(cells) == 5 and cells[4].endswith(" s ")
    }
    for name in grid_facts.NAMES:
        requested, space, _ = space_of(name)
        configs, _ = grid.valid_configs(requested, space)
        runs = len(grid.slots(configs, (0,), requested.sentinel_every, ""))
        counted = (len(configs), sum(map(grid.compiles, configs)), runs, requested.window_s)
        assert tuple(float(cell.strip(" s")) for cell in reported[name]) == counted, name


@pytest.mark.parametrize("name", ["events_hawkes", "photos_colour", "shapes_vit", "weblog_sessions"])
def test_on_a_processor_without_bf16_spare_parts_make_up_for_what_is_refused(name: str) -> None:
    requested, known = grid.read_grid(grid_facts.GRIDS / name / "grid.json"), grid_facts.facts(name)
    plain = replace(known, host=replace(known.host, cpu_flags=("avx2",)))
    space, refusals = build_space(requested.request(), plain, knobs_for(requested.request()))
    assert "precision" in refusals
    configs, _ = grid.valid_configs(requested, space)
    few, _ = grid.valid_configs(replace(requested, spare=()), space)
    assert len(few) < grid.LEAST <= len(configs) < grid.LEAST + 16
    assert configs[: len(few)] == few
    with_bf16, _, _ = space_of(name)
    assert requested.spare
    assert list(with_bf16.wanted()) == list(replace(requested, spare=()).wanted())


def test_a_grid_says_how_much_memory_a_run_may_use() -> None:
    requested, _, _ = space_of("photos_colour")
    assert requested.request().memory_bytes == requested.memory_mib * 2**20 > 0
    assert space_of("vision_digits")[0].request().memory_bytes is None
    assert record.free_bytes(2**40, 64) == 64 * 2**20
    assert record.free_bytes(2**20, 64) == int(record.MEMORY_SHARE * 2**20)


@pytest.mark.parametrize("words", [("--repeats", "0"), ("--repeats", "two"), ("--remeasure", "-1")])
def test_numbers_that_record_nothing_are_refused(words, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        record.parsed(["small", *words])
    assert ended.value.code == 2
    assert f"{words[1]!r} is no whole number" in capsys.readouterr().err


def test_what_a_script_refuses_is_left_out_with_the_reason() -> None:
    wanted = {"fused_optimizer": (True,), "threads": (1,)}
    requested = grid.Grid(workload="tabular_mlp", parts=(wanted,), seeds=(0,), window_s=1, sentinel_every=8)
    space, _ = build_space(
        requested.request(), grid_facts.facts("tabular_mlp"), knobs_for(requested.request())
    )
    configs, left_out = grid.valid_configs(requested, space)
    assert configs == (Config(),)
    assert left_out == {"fused_optimizer=True threads=1": "fused_optimizer is not varied here"}


def test_points_that_change_the_training_are_left_out() -> None:
    requested, _, _ = space_of("photos_denoise")
    facts = replace(grid_facts.facts("photos_denoise"), effective_batch_rule="explore")
    request = SpaceRequest(name="x", knobs={"effective_batch": (8, 32)})
    space, _ = build_space(request, facts, knobs_for(request))
    point = replace(requested, parts=({"effective_batch": (32,)},), spare=())
    configs, left_out = grid.valid_configs(point, space)
    assert configs == (Config(),)
    assert list(left_out.values()) == ["it changes the training"]


def test_values_of_all_parts_make_the_space_and_true_is_not_1() -> None:
    parts = ({"threads": (1, 2)}, {"threads": (2, 4), "channels_last": (True, 1)})
    requested = grid.Grid(workload="w", parts=parts, seeds=(0,), window_s=1, sentinel_every=8)
    assert requested.knobs == {"threads": (1, 2, 4), "channels_last": (True, 1)}
    assert len(list(requested.wanted())) == 2 + 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("{", "no JSON"),
        ("[]", "no grid file"),
        ('{"schema": "autotune.space/v1"}', "no grid file"),
        ('{"schema": "autotune.grid/v1", "knob": {}}', "unknown key knob"),
        ('{"schema": "autotune.grid/v1", "workload": "w", "parts": []}', "nothing to record"),
    ],
)
def test_an_invalid_grid_file_is_reported_with_the_reason(tmp_path: Path, data: str, message: str) -> None:
    path = tmp_path / "grid.json"
    path.write_text(data)
    with pytest.raises(UsageError, match=message):
        grid.read_grid(path)


# The plan --------------------------------------------------------------------------------------

CONFIGS = (Config(), *(Config({"threads": n}) for n in range(1, 20)))


def test_every_repeat_holds_every_config_once_in_an_order_of_its_own() -> None:
    plan = grid.slots(CONFIGS, (0, 7), 8, "w/cpu")
    orders = [[s.config for s in plan if s.repeat == r and not s.sentinel] for r in (0, 1)]
    assert all(sorted(o, key=Config.canonical) == sorted(CONFIGS, key=Config.canonical) for o in orders)
    assert orders[0] != orders[1]
    assert {s.seed for s in plan if s.repeat == 1} == {7}
    assert plan == grid.slots(CONFIGS, (0, 7), 8, "w/cpu")
    assert len({s.key for s in plan}) == len(plan)


def test_the_unchanged_script_stands_first_last_and_between() -> None:
    line = [s.sentinel for s in grid.slots(CONFIGS, (0,), 8, "w/cpu")]
    places = [i for i, sentinel in enumerate(line) if sentinel]
    assert places == [0, 9, 18, 23]
    assert all(s.config.is_baseline for s in grid.slots(CONFIGS, (0,), 8, "w/cpu") if s.sentinel)


def row(slot: grid.Slot, attempt: int = 1, **more: Any) -> TableRow:
    values = {"charged_s": 10.0, **more}
    return TableRow(
        config=slot.config,
        digest=slot.config.digest,
        repeat=slot.repeat,
        order=slot.order,
        attempt=attempt,
        sentinel=slot.sentinel,
        **values,
    )


def table(*rows: TableRow) -> Table:
    header = TableHeader(
        table="w/cpu",
        grid_sha256="",
        recorded="",
        device="",
        workload=WorkloadPart(name="w", script_sha256=""),
        request=SpaceRequest(name="g"),
        facts=grid_facts.facts("photos_denoise"),
        space=(),
        configs=CONFIGS,
        protocol=ProtocolPart(
            fidelity=grid.Grid(workload="w", parts=(), seeds=(0,), window_s=4, sentinel_every=8).fidelity(),
            seeds=(0, 1),
            repeats=2,
        ),
    )
    return Table(header=header, rows=rows)


LATE = Growth(first=10, repeat=1)


def test_a_table_that_grew_keeps_the_places_of_what_was_recorded() -> None:
    before = [s for s in grid.slots(CONFIGS[:10], (0, 7), 8, "w") if s.repeat == 0]
    plan = grid.slots(CONFIGS, (0, 7), 8, "w", (LATE,))
    first, second = ([s for s in plan if s.repeat == repeat] for repeat in (0, 1))
    assert first[: len(before)] == before
    assert [s.order for s in first] == list(range(len(first)))
    late = first[len(before) :]
    assert late[0].sentinel
    assert late[-1].sentinel
    assert {s.config for s in late if not s.sentinel} == set(CONFIGS[10:])
    mixed = [s.config for s in second if not s.sentinel]
    assert sorted(mixed, key=Config.canonical) == sorted(CONFIGS, key=Config.canonical)
    assert not set(mixed[10:]) <= set(CONFIGS[10:]), "what joined is mixed with the rest from then on"


def test_a_table_that_grew_twice_keeps_both_places() -> None:
    once = grid.slots(CONFIGS[:15], (0, 7), 8, "w", (LATE,))
    twice = grid.slots(CONFIGS, (0, 7), 8, "w", (LATE, Growth(first=15, repeat=2)))
    for repeat in (0, 1):
        before = [s for s in once if s.repeat == repeat]
        assert [s for s in twice if s.repeat == repeat][: len(before)] == before


def header(*configs: Config, **protocol: Any) -> TableHeader:
    made = table().header
    return replace(made, configs=configs, protocol=replace(made.protocol, **protocol))


def test_a_header_grows_by_what_a_grid_file_has_more() -> None:
    old = replace(header(*CONFIGS[:3]), commit="then", recorded="2026-11-22")
    new = replace(header(CONFIGS[0], CONFIGS[5], *CONFIGS[1:4], seeds=(0, 1, 2), repeats=3), grid_sha256="g")
    found = grid.grown(old, new, 1)
    assert not isinstance(found, str)
    assert found.configs == (*CONFIGS[:3], CONFIGS[5], CONFIGS[3])
    assert found.growths == (Growth(first=3, repeat=1),)
    assert (found.grid_sha256, found.recorded, found.protocol.seeds) == ("g", "2026-11-22", (0, 1, 2))
    same = grid.grown(found, replace(new, grid_sha256="h"), 2)
    assert not isinstance(same, str)
    assert (same.grid_sha256, same.growths) == ("h", found.growths)


@pytest.mark.parametrize(
    ("new", "why"),
    [
        (header(*CONFIGS[1:4]), "the first of them baseline"),
        (header(*CONFIGS[:2], CONFIGS[5]), CONFIGS[2].text()),
        (header(*CONFIGS[:4], sentinel_every=3), "another way"),
        (header(*CONFIGS[:4], seeds=(1, 0)), "other seeds"),
        (header(*CONFIGS[:4], seeds=(0,)), "other seeds"),
        (
            replace(header(*CONFIGS[:4]), request=SpaceRequest(name="g", memory_bytes=5)),
            "another amount of memory",
        ),
    ],
)
def test_a_table_does_not_grow_into_what_would_not_go_with_it(new: TableHeader, why: str) -> None:
    found = grid.grown(header(*CONFIGS[:3]), new, 1)
    assert isinstance(found, str)
    assert why in found


def test_a_grown_table_is_planned_and_gone_on_with() -> None:
    small = grid.Grid(workload="w", parts=(), seeds=(0, 1), window_s=4, sentinel_every=8)
    old = header(*CONFIGS[:3])
    rows = [row(slot) for slot in grid.planned(old, small) if slot.repeat == 0]
    found = grid.grown(old, header(*CONFIGS[:5]), 1)
    assert not isinstance(found, str)
    grew = replace(table(*rows), header=found)
    slot, attempt = grid.next_slot(grid.planned(found, small), grew) or pytest.fail("nothing is to do")
    assert (slot.repeat, slot.order, slot.sentinel, attempt) == (0, len(rows), True, 1)
    assert "--grow" in "\n".join(record.listing(replace(small, sha256="another"), grew))
    assert "--grow" not in "\n".join(record.listing(small, grew))


def test_a_sealed_recording_says_no_figures(capsys: pytest.CaptureFixture[str]) -> None:
    sitting = object.__new__(record.Recorder)
    sitting.grid = grid.Grid(workload="w", parts=(), seeds=(0, 1), window_s=4, sentinel_every=8)
    sitting.table, sitting._append = table(), lambda file, line: None
    slot = next(s for s in sitting.plan if s.config and s.repeat == 0)
    reported = row(slot, kind="crash_exit", message="of itself")
    sitting.sealed = False
    sitting._take(None, reported)
    sitting.sealed = True
    sitting._take(None, reported)
    plain, sealed = capsys.readouterr().out.splitlines()
    assert slot.config.text() in plain
    assert "of itself" in plain
    assert sealed.split() == [f"1/{len(sitting.plan)}", "10.0", "s"]


def test_a_sealed_table_lies_where_nobody_looks_for_tables(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert not Path(record.HELD_OUT / "w" / "cpu.jsonl").match(str(grid_facts.GRIDS / "*" / "*.jsonl"))
    monkeypatch.setattr(record, "HELD_OUT", tmp_path / "held_out")
    made = tmp_path / "held_out" / "shapes_vit" / f"{record.file_name(record.host_facts())}.jsonl"
    made.parent.mkdir(parents=True)
    lines = (replace(table().header, table="shapes_vit/sealed"), row(SLOT))
    made.write_bytes(b"".join(map(record.tables.encode, lines)))
    assert record.main(["shapes_vit", "--list", "--sealed"]) == 0
    assert "shapes_vit/sealed" in capsys.readouterr().out


def test_recording_goes_on_where_it_stopped_and_ends() -> None:
    plan, rows = grid.slots(CONFIGS[:3], (0, 1), 8, "w"), []
    while (found := grid.next_slot(plan, table(*rows))) is not None:
        rows.append(row(*found))
    assert [r.attempt for r in rows] == [1] * len(plan)
    assert [(r.repeat, r.order) for r in rows] == [s.key for s in plan]


def test_disturbed_runs_come_again_at_the_end_of_their_repeat_and_twice_at_most() -> None:
    plan, rows = grid.slots(CONFIGS[:3], (0, 1), 8, "w"), []
    while (found := grid.next_slot(plan, table(*rows))) is not None:
        slot, attempt = found
        rows.append(row(slot, attempt, is_disturbed=slot.key == (0, 1)))
    bad = [(i, r.attempt) for i, r in enumerate(rows) if (r.repeat, r.order) == (0, 1)]
    per_repeat = len(plan) // 2
    assert bad == [(1, 1), (per_repeat, 2), (per_repeat + 1, 3)]
    assert len(rows) == len(plan) + 2


def measured(slot: grid.Slot, seconds: float, **more: Any) -> TableRow:
    """One block of 400 samples in so many seconds."""
    blocks = Blocks(
        num_steps=(100,) * 4,
        num_samples=(100,) * 4,
        elapsed_s=(seconds / 4,) * 4,
        aside_s=(0.0,) * 4,
        wait_s=(0.0,) * 4,
        run_delay_s=(None,) * 4,
        flags=("",) * 4,
    )
    return row(slot, blocks=blocks, window_s=seconds, effective_batch=1.0, **more)


def recorded_fastest(seconds: Any, repeats: int = 3, fastest: int = 3, stop: int = 10_000) -> Table:
    """A whole recording of the fastest; `seconds` is called by config and repeat."""
    seeds = tuple(range(repeats))
    requested = grid.Grid(workload="w", parts=(), seeds=seeds, window_s=4, sentinel_every=8)
    made = replace(table(), header=header(*CONFIGS, seeds=seeds, repeats=repeats))
    while len(made.rows) < stop:
        plan = grid.focused(grid.planned(made.header, requested), made, fastest)
        found = grid.next_slot(plan, made)
        if found is None:
            break
        made = replace(made, rows=(*made.rows, measured(found[0], seconds(found[0].config, found[0].repeat))))
    return made


def test_after_the_first_repeat_only_the_fastest_and_the_script_run_again() -> None:
    ranks = {config: n for n, config in enumerate(CONFIGS)}
    made = recorded_fastest(lambda config, _repeat: 4.0 - 0.1 * ranks[config])
    first = [r.config for r in made.rows if r.repeat == 0 and not r.config.is_baseline]
    assert sorted(first, key=ranks.__getitem__) == list(CONFIGS[1:])
    for repeat in (1, 2):
        again = [r.config for r in made.rows if r.repeat == repeat]
        assert {c for c in again if not c.is_baseline} == set(CONFIGS[-3:])
        assert len(again) == len(set(again)) - 1 + again.count(Config())
        assert again[0].is_baseline
        assert 1 <= again.count(Config()) <= 3


def test_what_was_lucky_once_gives_way_to_what_is_fast_and_a_slow_day_reports_nothing() -> None:
    lucky = CONFIGS[1]

    def seconds(config: Config, repeat: int) -> float:
        slow_day = 1.5 if repeat == 1 else 1.0
        if config == lucky:
            return slow_day * (1.0 if repeat == 0 else 5.0)
        return slow_day * (4.0 - 0.1 * CONFIGS.index(config))

    made = recorded_fastest(seconds)
    runs = {r: {x.config for x in made.rows if x.repeat == r and x.config} for r in (1, 2)}
    assert lucky in runs[1]
    assert runs[1] - {lucky} == set(CONFIGS[-2:])
    # By the mean of both it is still among the first three, and a day on which all are slow changes nothing.
    assert runs[2] - {lucky} == set(CONFIGS[-2:])
    longer = recorded_fastest(seconds, repeats=6)
    last = {x.config for x in longer.rows if x.repeat == 5 and x.config}
    assert last == set(CONFIGS[-3:])


def test_a_recording_of_the_fastest_goes_on_where_it_stopped() -> None:
    def seconds(config: Config, _repeat: int) -> float:
        return 4.0 - 0.1 * CONFIGS.index(config)

    whole = recorded_fastest(seconds)
    part = recorded_fastest(seconds, stop=len(whole.rows) - 2)
    assert part.rows == whole.rows[:-2]
    requested = grid.Grid(workload="w", parts=(), seeds=(0, 1, 2), window_s=4, sentinel_every=8)
    unfinished = replace(whole, rows=whole.rows[:5])
    plan = grid.focused(grid.planned(unfinished.header, requested), unfinished, 3)
    assert {slot.repeat for slot in plan} == {0}, "nobody knows yet who is fastest"


def test_a_compile_counts_among_what_makes_fast() -> None:
    slot = next(s for s in grid.slots(CONFIGS, (0,), 8, "w") if s.config)
    plain = header(*CONFIGS)
    run = replace(plain, workload=replace(plain.workload, unit="samples/s", planned_steps=1000))
    made = measured(slot, 4.0, compile_s=10.0)
    assert grid.lasting_rate(made, run) == pytest.approx(1000 / (10.0 + 10.0))
    assert grid.lasting_rate(made, plain) == pytest.approx(100.0)
    assert grid.lasting_rate(row(slot, kind="crash_exit"), run) is None


@pytest.mark.parametrize(
    ("more", "again"),
    [
        ({"kind": "infra_lost"}, True),
        ({"kind": "contended"}, True),
        ({"kind": "oom_host"}, False),
        ({"kind": "crash_exit"}, False),
        ({"kind": "config_rejected", "evidence": {"knob": "batch_size", "how": "flag"}}, True),
        ({"kind": "config_rejected", "evidence": {"knob": "threads", "how": "patch"}}, False),
    ],
)
def test_only_what_says_nothing_about_a_config_is_run_again(more: dict[str, Any], again: bool) -> None:
    plan = grid.slots(CONFIGS[:1], (0,), 8, "w")
    rows = [row(slot, **(more if slot.order == 1 else {})) for slot in plan]
    assert grid.next_slot(plan, table(*rows)) == ((plan[1], 2) if again else None)


def test_a_run_is_expected_to_take_what_its_like_took() -> None:
    compiled, plain = Config({"compile_mode": "default"}), Config({"threads": 1})
    assert (grid.compiles(compiled), grid.compiles(plain)) == (True, False)
    assert not grid.compiles(Config({"compile_mode": "off"}))
    slots = [grid.Slot(0, n, config, 0) for n, config in enumerate((plain, compiled))]
    rows = [row(slots[0], charged_s=8.0), row(slots[1], charged_s=50.0)]
    assert grid.expected_s(grid.Slot(1, 0, plain, 0), rows) == 8.0
    assert grid.expected_s(grid.Slot(1, 0, Config({"threads": 4}), 0), rows) == 8.0
    assert grid.expected_s(grid.Slot(1, 0, Config({"compile_region": "blocks"}), 0), rows) == 50.0
    assert grid.expected_s(slots[1], []) > grid.expected_s(slots[0], [])


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("20m", 1200), ("1.5h", 5400)])
def test_limits_are_durations(text: str, seconds: float) -> None:
    assert grid.duration_s(text) == seconds
    with pytest.raises(UsageError, match="no duration"):
        grid.duration_s(text[:-1])


# What is written -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (
            "could not be set up: [Errno 2] /home/ada/studies/t1: gone",
            "could not be set up: [Errno 2] t1: gone",
        ),
        ('File "/opt/x/lib/torch/nn.py", line 3', 'File "nn.py", line 3'),
        ("via http://10.0.0.1:8080/simple/ in turn", "via <address> in turn"),
        ("97.5 samples/s in 1/2 of ~/runs/it", "97.5 samples/s in 1/2 of it"),
        ("on babbage: babbages", "on <host>: babbages"),
    ],
)
def test_folders_addresses_and_the_machines_name_are_not_written(text: str, kept: str) -> None:
    assert grid.scrubbed({"a": [text]}, "babbage") == {"a": [kept]}


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("cpu2 Intel(R) Xeon(R) Processor @ 2.80GHz", "cpu2-intel-xeon-processor"),
        (
            "cpu2 Intel(R) Xeon(R) Processor @ 2.80GHz without bf16",
            "cpu2-intel-xeon-processor-without-bf16",
        ),
        ("", "unknown"),
    ],
)
def test_a_table_is_called_after_the_device(name: str, file: str) -> None:
    assert grid.slug(name) == file


SLOT = grid.Slot(1, 4, Config({"threads": 1}), 7)
MADE: dict[str, Any] = {
    "session": 2,
    "began": "2026-11-21T10:00:00Z",
    "commit": "abc+",
    "compile_key": "k",
    "deadline_s": 376.0,
}


def stream() -> ProcessReports:
    """First step at 10 s, window from 12 s, with a compile of 1 s before each."""
    reported = ProcessReports()
    rows = [StepRow(t_ns=int((10 + 0.1 * i) * S), wait_ns=S // 100, samples=8) for i in range(60)]
    reported.take(Steps(rows=tuple(rows)))
    for began, ended in ((5, 6), (10.5, 11.5)):
        reported.take(Compiling(t_ns=int(began * S), began=True))
        reported.take(Compiling(t_ns=int(ended * S), began=False))
    loader = LoaderFacts(
        site="t.py:1",
        batch_size=8,
        num_workers=0,
        prefetch_factor=None,
        pin_memory=False,
        persistent_workers=False,
    )
    reported.take(ReadBack(facts=RunFacts(samples_source="loader", loader=loader)))
    readings = (
        Reading(knob="threads", wanted=1, found=1, status="applied"),
        Reading(knob="precision", wanted=None, found="fp32", status="asis"),
        Reading(knob="tf32", wanted=None, found=None, status="asis"),
    )
    reported.take(
        Closed(
            trial=5,
            begin_ns=12 * S,
            end_ns=rows[-1].t_ns,
            ended="limit",
            steady="steady",
            first_step_ns=10 * S,
            compile_s=2.0,
            loss=(LossPoint(samples=8, loss=0.1 + 0.2, t_s=0.1),),
            readings=readings,
        )
    )
    return reported


def test_a_measured_run_becomes_a_row_with_its_clock_taken_apart() -> None:
    reported, outside = stream(), HostSamples(start_ns=8 * S, peak_bytes=9, limit_bytes=11, cold=True)
    outcome = measure(reported.closed[5], reported, outside)
    made = record.row_of(
        SLOT, 1, TrialResult(trial=5, outcome=outcome, seconds=9.0), (reported, outside), **MADE
    )
    assert (made.kind, made.repeat, made.order, made.seed, made.session) == ("ok", 1, 4, 7, 2)
    assert made.start_up_s == pytest.approx(1.0)
    assert (made.compile_s, made.compile_cache) == (2.0, "cold")
    assert made.warmup_s == pytest.approx(1.0)
    assert made.window_s == pytest.approx(3.9)
    assert made.teardown_s == pytest.approx(9.0 - 7.9)
    assert made.charged_s == 9.0
    assert made.throughput("samples/s").value == pytest.approx(outcome.throughput.value)
    assert made.loss_values == (0.1 + 0.2,)
    assert [r.knob for r in made.readings] == ["threads"]
    assert made.found == {"precision": "fp32"}
    assert (made.memory.pss, made.memory.limit) == (9, 11)


def test_a_failed_run_becomes_a_row_without_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "babbage")
    message = "OSError: /home/ada/x.py on babbage (in setup, after 0 steps)"
    failure = Failure(
        kind=FailureKind.CRASH_EXIT,
        message=message,
        evidence={"phase": "setup", "error": "OSError", "dir": "/home/ada/trials/t1", "attempt": 1},
    )
    reported = ProcessReports()
    reported.take(Broke(kind="crash_exit", error="OSError", message="", tail="", phase="setup"))
    seen = reported, HostSamples(start_ns=0, peak_bytes=5)
    made = record.row_of(SLOT, 2, TrialResult(trial=5, outcome=failure, seconds=3.21), seen, **MADE)
    assert made.message == "OSError: x.py on <host> (in setup, after 0 steps)"
    assert (made.kind, made.phase, made.evidence) == ("crash_exit", "setup", {"error": "OSError"})
    assert (made.window_s, made.contamination, made.charged_s) == (None, None, 3.21)
    assert made.memory.pss == 5
    assert not made.is_ok


def test_a_run_that_diverged_keeps_what_was_measured() -> None:
    reported, outside = stream(), HostSamples(start_ns=8 * S)
    (closed,) = reported.closed.values()
    reported.closed[5] = replace(closed, loss=(LossPoint(samples=8, loss=math.nan, t_s=0.1),))
    outcome = measure(reported.closed[5], reported, outside)
    made = record.row_of(
        SLOT, 1, TrialResult(trial=5, outcome=outcome, seconds=9.0), (reported, outside), **MADE
    )
    assert made.kind == "diverged"
    assert len(made.blocks) > 3
    assert made.throughput("samples/s") is None


@pytest.mark.parametrize(
    ("seen", "disturbed"),
    [
        (None, False),
        (Contamination(foreign_cpu_frac=0.1, pressure_frac=0.9, flags=("bursty",)), False),
        (Contamination(foreign_cpu_frac=0.9), True),
        (Contamination(flags=("foreign_gpu",)), True),
        (Contamination(flags=("throttled",)), True),
    ],
)
def test_a_neighbour_disturbs_and_pressure_of_ones_own_does_not(seen: Any, disturbed: bool) -> None:
    assert record.is_disturbed(row(SLOT, contamination=seen)) is disturbed


def test_a_full_disk_ends_the_sitting_and_says_nothing_of_a_configuration() -> None:
    """Every run after it would end so too, and rows would be settled that say nothing."""
    sitting = object.__new__(record.Recorder)
    sitting.grid = grid.read_grid(grid_facts.GRIDS / "text_chargpt" / "grid.json")
    full = Failure(kind=FailureKind.DISK, message="0.01 GiB are free")
    sitting.table, sitting.study, sitting.stopped = None, None, False
    sitting.planner = SimpleNamespace(assign=lambda study, trial: full)
    with pytest.raises(DiskFull, match=r"0\.01 GiB") as ending:
        sitting._run(SLOT, 1)
    assert "run it again" in ending.value.hint


@pytest.mark.parametrize(("made", "ends"), [(1, True), (0, False)])
def test_a_run_that_outlasts_the_limit_is_ended_but_not_the_first_of_a_sitting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, made: int, ends: bool
) -> None:
    ended = threading.Event()
    failure = Failure(kind=FailureKind.KILLED_USER, message="ended by request")

    def outlasts(_study: Any, _trial: Any) -> Failure:
        assert ended.wait(30) if ends else not ended.wait(0.5)
        return failure

    sitting = object.__new__(record.Recorder)
    sitting.grid = grid.Grid(workload="w", parts=(), seeds=(0, 1), window_s=4, sentinel_every=8)
    sitting.table, sitting.study, sitting.stopped, sitting.made = table(), None, False, made
    sitting.remeasured, sitting.clock, sitting.open = 2, SystemClock(), lambda file: None
    sitting.planner = SimpleNamespace(assign=outlasts)
    sitting.runner = SimpleNamespace(stop=ended.set)
    monkeypatch.setattr(record, "expected_s", lambda slot, rows: 0.0)
    assert sitting.record(None, 0.2) == 0
    assert ended.is_set() is ends
    assert "the limit is near; run it again to go on" in capsys.readouterr().out
    assert not sitting.stopped


# The command ----------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path)


def command(*words: str, env: dict[str, str], timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    script = str(grid_facts.GRIDS / "record.py")
    return subprocess.run(
        [sys.executable, script, *words], env=env, capture_output=True, text=True, timeout=timeout_s
    )


def test_the_recorder_needs_nothing_but_the_standard_library(alone: dict[str, str], tmp_path: Path) -> None:
    done = command("text_chargpt", "--list", "--out", str(tmp_path / "none.jsonl"), env=alone)
    assert done.returncode == 0, done.stderr
    assert "nothing yet" in done.stdout


def test_a_workload_without_a_grid_is_named_with_those_that_have_one(alone: dict[str, str]) -> None:
    done = command("text_chargtp", env=alone)
    assert done.returncode == 2
    assert "text_chargpt" in done.stderr
    assert "Traceback" not in done.stderr


PARTS = [{"knobs": {"fused_optimizer": [True], "gc_control": ["freeze"]}}]
TINY = {
    "schema": "autotune.grid/v1",
    "workload": "text_chargpt",
    "args": ["--width", "16", "--depth", "1", "--heads", "2", "--length", "16"],
    "seeds": [0, 1],
    "window_s": 0.6,
    "sentinel_every": 8,
    "parts": PARTS,
}


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_recording_stops_at_its_limit_and_goes_on(alone: dict[str, str], tmp_path: Path) -> None:
    requested, out = tmp_path / "grid.json", tmp_path / "cpu.jsonl"
    requested.write_text(json.dumps(TINY))
    words = ("text_chargpt", "--grid", str(requested), "--out", str(out), "--work", str(tmp_path / "work"))
    # Threads that wait for one another would be all that is seen on a busy machine.
    alone["OMP_NUM_THREADS"] = "1"
    words = (*words, "--remeasure", "0")
    first = command(*words, "--limit", "1s", env=alone, timeout_s=120)
    assert first.returncode == 0, first.stderr
    assert "the limit is near" in first.stdout
    data = out.read_bytes()
    assert len(record.tables.decode(data).rows) == 1
    out.write_bytes(data + b'{"_":"TableRow","config":{"threads"')
    second = command(*words, env=alone, timeout_s=360)
    assert second.returncode == 0, second.stderr
    assert "all runs are recorded" in second.stdout
    found = record.tables.decode(out.read_bytes())
    assert out.read_bytes().startswith(data)
    plan = grid.slots(found.header.configs, found.header.protocol.seeds, 8, found.header.table)
    assert set(found.settled()) == {slot.key for slot in plan}
    assert found.header.configs == (
        Config(),
        Config({"fused_optimizer": True, "gc_control": "freeze"}),
    )
    for made in found.rows:
        assert made.is_ok, made.message
        assert made.throughput("samples/s").value > 0
        assert made.attempt == 1
        assert {r.knob: r.found for r in made.readings} == dict(made.config)
    text = out.read_text()
    assert str(tmp_path) not in text
    assert str(grid_facts.WORKLOADS.parent) not in text
    assert not list((tmp_path / "work" / "text_chargpt" / "trials").iterdir())
    listed = command(*words, "--list", env=alone)
    assert "repeat 1: 4 of 4 runs" in listed.stdout, listed.stdout
    late = {"knobs": {"threads": [2], "gc_control": ["boundary"]}}
    larger = {**TINY, "parts": [*PARTS, late]}
    requested.write_text(json.dumps(larger))
    refused = command(*words, env=alone)
    assert refused.returncode == 2
    assert "--grow" in refused.stderr
    grew = command(*words, "--grow", "--limit", "1s", env=alone)
    assert grew.returncode == 0, grew.stderr
    assert out.read_text().startswith(text)
    now = record.tables.decode(out.read_bytes())
    assert now.rows == found.rows or repr(now.rows) == repr(found.rows)
    assert now.header.configs[: len(found.header.configs)] == found.header.configs
    assert now.header.growths == (Growth(first=2, repeat=2),)
    requested.write_text(json.dumps({**larger, "window_s": 0.7}))
    for more, message in (((), "grid"), (("--grow",), "measures in another way")):
        refused = command(*words, *more, env=alone)
        assert refused.returncode == 2
        assert message in refused.stderr
    assert record.tables.decode(out.read_bytes()).header == now.header
