"""The value of a recorded grid, and its lines."""

import json
import math
from dataclasses import replace

import pytest

from autotune.errors import StoreError, UsageError
from autotune.model.config import Config
from autotune.model.facts import Facts, HostFacts, ScriptFacts
from autotune.model.measurement import Contamination, Memory, Reading
from autotune.model.study import SpaceRequest
from autotune.model.trial import Fidelity
from autotune.testing.table import (
    Blocks,
    Growth,
    KnobPart,
    ProtocolPart,
    TableHeader,
    TableRow,
    WorkloadPart,
    decode,
    encode,
)

FIDELITY = Fidelity(
    min_window_s=4, max_window_s=4, min_steps=1, target_width=0.0, setup_s=300, deadline_s=376
)
HEADER = TableHeader(
    table="w/cpu",
    grid_sha256="g",
    recorded="2026-11-21",
    device="CPU with 2 cores",
    workload=WorkloadPart(name="w", script_sha256="s", planned_steps=100, effective_batch=8),
    request=SpaceRequest(name="grid-w", knobs={"threads": (1, 2)}),
    facts=Facts(
        host=HostFacts(cpus=2, physical_cores=2, memory_bytes=1), script=ScriptFacts(path="w.py", sha256="s")
    ),
    space=(KnobPart(knob="threads", values=(1, 2), own=2, effect="EXACT", ordinal=True),),
    configs=(Config(), Config({"threads": 1})),
    protocol=ProtocolPart(fidelity=FIDELITY, seeds=(0, 1), repeats=2, sentinel_every=8),
    versions={"python": "3.11.7", "torch": "2.13.0"},
)
BLOCKS = Blocks(
    num_steps=(5, 1, 5),
    num_samples=(40, 8, 40),
    elapsed_s=(0.5, 9.0, 0.9),
    aside_s=(0.0, 0.0, 0.4),
    wait_s=(0.1, 0.0, 0.1),
    run_delay_s=(None, 0.25, 0.0),
    flags=("", "compile aside", "evaluation"),
)


def row(order=0, **changed):
    config = changed.pop("config", Config({"threads": 1}))
    return TableRow(config=config, digest=config.digest, repeat=0, order=order, **changed)


MEASURED = row(
    readings=(Reading(knob="threads", wanted=1, found=1, status="applied"),),
    found={"precision": "fp32", "pin_memory": False},
    start_up_s=2.5,
    compile_s=0.0,
    compile_cache="none",
    blocks=BLOCKS,
    memory=Memory(pss=5),
    loss_samples=(8, 16),
    loss_values=(0.1 + 0.2, math.nan),
    loss_t_s=(0.1, 0.2),
    contamination=Contamination(foreign_cpu_frac=0.05, flags=("bursty",)),
)
FAILED = row(order=1, kind="crash_exit", message="exit code 1", charged_s=3.0)


def test_a_table_reads_back_as_it_was_written():
    data = b"".join(map(encode, (HEADER, MEASURED, FAILED)))
    table = decode(data)
    assert table.header == HEADER
    assert table.rows[1] == FAILED
    assert repr(table.rows[0]) == repr(MEASURED)  # nan is not equal to itself
    assert table.size_bytes == len(data)


def test_what_was_not_measured_is_null_and_not_nought():
    written = json.loads(encode(FAILED))
    for column in (
        "start_up_s",
        "compile_s",
        "compile_cache",
        "window_s",
        "effective_batch",
        "contamination",
    ):
        assert written[column] is None
    assert written["memory"]["pss"] is None


@pytest.mark.parametrize("cut", [1, 2, 40, 200])
def test_a_torn_last_line_is_not_there_yet(cut):
    whole = encode(HEADER) + encode(MEASURED)
    table = decode(whole + encode(FAILED)[:-cut])
    assert len(table.rows) == 1
    assert table.size_bytes == len(whole)


def test_a_damaged_line_in_the_middle_is_reported_with_its_number():
    with pytest.raises(StoreError, match="line 2"):
        decode(encode(HEADER) + b'{"_":"TableRow","con\n' + encode(FAILED), source="w.jsonl")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no whole line"),
        (encode(HEADER)[:-1], "no whole line"),
        (b"not json\n", "no recorded grid"),
        (encode(FAILED), "no recorded grid"),
        (encode(replace(HEADER, schema_version=99)), "schema 99"),
    ],
)
def test_what_is_no_table_is_reported_so(data, message):
    with pytest.raises(UsageError, match=message):
        decode(data)


def test_fields_of_a_later_version_are_passed_over():
    later = json.loads(encode(FAILED))
    later["energy_j"] = 5.0
    assert decode(encode(HEADER) + json.dumps(later).encode() + b"\n").rows == (FAILED,)


def test_throughput_is_that_of_training_in_unspoiled_blocks():
    found = MEASURED.throughput("samples/s")
    assert found.value == pytest.approx(80 / 1.0)
    assert replace(MEASURED, produced_frac=0.5).throughput("samples/s").value == pytest.approx(40)
    assert MEASURED.throughput("steps/s").value == pytest.approx(10)
    assert FAILED.throughput("samples/s") is None
    assert row().throughput("samples/s") is None


def test_the_last_undisturbed_row_of_a_slot_counts():
    rows = [
        row(charged_s=1.0, is_disturbed=True),
        row(charged_s=2.0, attempt=2),
        row(charged_s=3.0, attempt=3, is_disturbed=True),
        row(order=1, charged_s=4.0, is_disturbed=True),
        row(order=1, charged_s=5.0, attempt=2, is_disturbed=True),
    ]
    table = decode(b"".join(map(encode, (HEADER, *rows))))
    assert {slot: kept.charged_s for slot, kept in table.settled().items()} == {(0, 0): 2.0, (0, 1): 5.0}
    assert len(table.of(Config({"threads": 1}))) == 5
    assert table.of(Config({"threads": 4})) == ()


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("grid", {"grid_sha256": "other"}),
        ("script", {"workload": replace(HEADER.workload, script_sha256="other")}),
        ("versions", {"versions": {"python": "3.11.7", "torch": "2.14.0"}}),
        ("device", {"device": "NVIDIA H200"}),
        ("environment", {"environment": {"OMP_NUM_THREADS": "1"}}),
    ],
)
def test_another_grid_script_or_machine_is_another_table(name, changed):
    then, now = HEADER.identity(), replace(HEADER, **changed).identity()
    assert [key for key in then if then[key] != now[key]] == [name]
    assert replace(HEADER, commit="abc", recorded="2027-01-01").identity() == then


LATER = replace(
    HEADER,
    configs=(*HEADER.configs, Config({"threads": 4})),
    grid_sha256="h",
    growths=(Growth(first=2, repeat=1),),
)


def test_a_table_that_grew_has_all_rows_under_its_last_header():
    late = row(order=2, config=Config({"threads": 4}))
    data = b"".join(map(encode, (HEADER, FAILED, LATER, late)))
    table = decode(data)
    assert table.header == LATER
    assert table.rows == (FAILED, late)
    assert table.size_bytes == len(data)
    assert decode(data[:-1]).rows == (FAILED,)


@pytest.mark.parametrize(
    "other",
    [
        replace(LATER, configs=LATER.configs[1:]),
        replace(LATER, configs=LATER.configs[:1]),
        replace(LATER, table="w/other"),
    ],
)
def test_a_header_that_is_none_of_the_rows_before_it_is_damage(other):
    with pytest.raises(StoreError, match="line 3"):
        decode(b"".join(map(encode, (HEADER, FAILED, other))))
