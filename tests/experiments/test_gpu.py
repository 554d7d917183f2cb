"""The checks for a CUDA device work as scripts: on a CPU, with small models."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grid
import pytest
from alone import environment

from autotune.knobs.memory.allocator import Allocator

GPU = Path(__file__).resolve().parents[2] / "experiments" / "gpu"
GRIDS = GPU.parent / "grids"
NAMES = ("small_steps", "gpt2", "resnet50", "vit_b16")
MOST_CONFIGS = 40
"""A repeat takes some ten minutes of a device that is rented; 20 of the points at least have to be valid."""


@pytest.fixture(scope="module")
def checks() -> Any:
    """The scripts as modules; they import one another by name, as scripts in one folder do."""
    kept, known = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(GPU))
    try:
        import all as everything
        import common
        import knobs
        import memory
        import rival

        yield SimpleNamespace(all=everything, common=common, knobs=knobs, memory=memory, rival=rival)
    finally:
        sys.path[:] = kept
        for name in set(sys.modules) - known:
            path = getattr(sys.modules[name], "__file__", None)
            if path and Path(path).parent == GPU:
                del sys.modules[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_grid_fits_into_minutes(name: str) -> None:
    requested = grid.read_grid(GRIDS / name / "grid.json")
    distinct = {tuple(sorted(point.items())) for point in requested.wanted()}
    assert 30 <= len(distinct) <= MOST_CONFIGS
    assert requested.workload == name
    assert (GPU / "workloads" / f"{name}.py").is_file()


def test_a_case_is_judged_by_kernels_launches_and_copies(checks: Any) -> None:
    case = checks.knobs.Case("x", "conv", (), kernels=r"nhwc", never=r"nchwToNhwc", other=True)
    base = {"kernels": {"sgemm": 3}, "calls": {}, "copies": {}}
    reported = {"kernels": {"implicit_gemm_nhwc": 3}, "calls": {}, "copies": {}}
    assert checks.knobs.judged(case, reported, base)[0] == "yes"
    reported["kernels"]["nchwToNhwcKernel"] = 1
    assert checks.knobs.judged(case, reported, base) == ("unclear", "not seen: no kernel like nchwToNhwc")
    graphs = checks.knobs.Case("x", "conv", (), calls="cudaGraphLaunch", unclear=False)
    assert checks.knobs.judged(graphs, reported, base)[0] == "no"
    assert checks.knobs.judged(graphs, {**reported, "calls": {"cudaGraphLaunch": 3}}, base)[0] == "yes"
    pinned = checks.knobs.Case("x", "conv", (), copies=r"Pinned -> Device")
    assert (
        checks.knobs.judged(pinned, {**reported, "copies": {"Memcpy HtoD (Pinned -> Device)": 1}}, base)[0]
        == "yes"
    )
    assert checks.knobs.judged(checks.knobs.Case("x", "conv", ()), reported, base)[0] == "unclear"


@pytest.mark.parametrize(
    ("case", "reported", "beside", "seen"),
    [
        ("non_blocking", {"waits": 1}, {"waits": 7}, "yes"),
        ("non_blocking", {"waits": 7}, {"waits": 7}, "no"),
        ("non_blocking", {"waits": 0}, {"waits": 0}, "unclear"),  # the profiler saw no call of the runtime
        ("activation_checkpointing", {"peak_bytes": 60}, {"peak_bytes": 90}, "yes"),
        ("activation_checkpointing", {"peak_bytes": 90}, {"peak_bytes": 90}, "no"),
        ("activation_checkpointing", {"peak_bytes": None}, {"peak_bytes": None}, "unclear"),  # a CPU
        ("memory_budget", {"peak_bytes": 90}, {"peak_bytes": 90}, "unclear"),
        ("compile_shapes", {"graphs": 1}, {"graphs": 2}, "yes"),
        ("set_to_none", {"launched": 400}, {"launched": 500}, "yes"),
        ("set_to_none", {"launched": 500}, {"launched": 500}, "no"),
        ("allocator", {"expandable": 3}, {"expandable": 0}, "yes"),
        ("allocator", {"expandable": 0}, {"expandable": 0}, "no"),
        ("allocator", {"expandable": 3}, {"expandable": 3}, "unclear"),  # the caller's own setting
    ],
)
def test_what_leaves_no_name_behind_is_judged_by_a_figure(
    checks: Any, case: str, reported: dict[str, int | None], beside: dict[str, int | None], seen: str
) -> None:
    requested = next(c for c in checks.knobs.CASES if c.name == case)
    nameless: dict[str, Any] = {"kernels": {}, "calls": {}, "copies": {"Memcpy HtoD (Pinned -> Device)": 6}}
    assert checks.knobs.judged(requested, {**nameless, **reported}, {**nameless, **beside})[0] == seen
    assert checks.knobs.judged(requested, {**nameless, **reported}, None)[0] == "unclear"


def test_a_mode_without_graphs_is_one_that_launches_none(checks: Any) -> None:
    case = next(c for c in checks.knobs.CASES if c.name == "compile max-autotune-no-cudagraphs")
    reported: dict[str, Any] = {"kernels": {"triton_poi_fused_0": 3}, "calls": {}, "copies": {}}
    assert checks.knobs.judged(case, reported, None)[0] == "yes"
    assert checks.knobs.judged(case, {**reported, "calls": {"cudaGraphLaunch": 3}}, None)[0] == "no"


def test_blocks_that_are_compiled_one_by_one_have_other_kernels_than_the_whole(checks: Any) -> None:
    case = next(c for c in checks.knobs.CASES if c.name == "compile_region")
    whole: dict[str, Any] = {"kernels": {"triton_poi_fused_0": 3}, "calls": {}, "copies": {}}
    blocks = {**whole, "kernels": {"triton_poi_fused_0": 3, "reduce_kernel": 1}}
    assert checks.knobs.judged(case, blocks, whole)[0] == "yes"
    assert checks.knobs.judged(case, whole, whole)[0] == "unclear"


def test_a_case_is_compared_with_all_that_it_changes_but_its_own_knob(checks: Any) -> None:
    for case in checks.knobs.CASES:
        assert set(case.beside) <= set(case.changes), case.name
        own = {change.knob for change in case.changes} - {change.knob for change in case.beside}
        assert not case.beside or own == {case.name}


def test_a_run_that_several_cases_are_compared_with_is_made_once(
    checks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, tuple[str, ...]]] = []

    def run(
        model: str, changes: Any, folder: Path, limit_s: float
    ) -> tuple[dict[str, Any], list[Any], dict[str, Any]]:
        assert limit_s > 0
        made.append((model, tuple(change.knob for change in changes)))
        reported = dict.fromkeys(checks.knobs.KEPT, 1)
        return {**reported, "kernels": {}, "calls": {}, "copies": {}}, [], {"code": 0, "last_line": ""}

    monkeypatch.setattr(checks.common, "machine", lambda: {"devices": [], "cpu": "x"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(checks.knobs, "run", run)
    names = ["pin_memory", "non_blocking", "memory_budget", "compile_region"]
    assert checks.knobs.main(["--device", "cpu", "--out", str(tmp_path), "--only", *names]) == 0
    assert len(set(made)) == len(made)
    assert set(made) == {
        ("conv", ()),
        ("attention", ()),
        ("conv", ("pin_memory",)),
        ("conv", ("pin_memory", "non_blocking")),
        ("attention", ("compile_mode",)),
        ("attention", ("compile_mode", "memory_budget")),
        ("attention", ("compile_mode", "compile_region")),
    }


@pytest.mark.parametrize(
    ("case", "kernel", "seen"),
    [
        ("bf16", "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "yes"),
        ("bf16", "nvjet_sm90_tst_mma_128x256_v_bz_NNT", "yes"),
        ("fp16", "nvjet_sm90_hsh_mma_128x256_v_bz_NNT", "yes"),
        ("tf32=high", "nvjet_sm90_sss_mma_128x256_v_bz_NNT", "yes"),
        ("tf32=high", "nvjet_sm90_tst_mma_128x256_v_bz_NNT", "unclear"),
        ("tf32=high", "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64", "unclear"),
    ],
)
def test_products_are_known_by_the_names_of_several_libraries(
    checks: Any, case: str, kernel: str, seen: str
) -> None:
    requested = next(c for c in checks.knobs.CASES if c.name == case)
    reported = {"kernels": {kernel: 3}, "calls": {}, "copies": {}}
    assert checks.knobs.judged(requested, reported, {"kernels": {"sgemm": 3}})[0] == seen


def test_the_allocator_is_requested_by_the_name_that_any_pytorch_reads(checks: Any) -> None:
    case = next(c for c in checks.knobs.CASES if c.name == "allocator")
    assert {change.spelling for change in case.changes} == set(Allocator.spellings)


def test_tables_go_where_the_other_results_are_requested(checks: Any, tmp_path: Path) -> None:
    check = next(c for c in checks.all.plan() if c.name == "grid gpt2")
    options = SimpleNamespace(out=tmp_path, placed=True, device="cuda", tiny=False)
    assert checks.all.command(check, options)[-2:] == ["--out", str(tmp_path / "grid-gpt2.jsonl")]
    options.placed = False
    assert "--out" not in checks.all.command(check, options)


def test_a_folder_is_that_of_the_caller(checks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks run in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(checks.common, "machine", lambda: {"devices": [], "cpu": "x"})
    options = checks.common.parsed(checks.common.parser(""), ["--device", "cpu", "--out", "here"])
    assert (options.out, options.placed) == (tmp_path / "here", True)


def test_every_case_names_knobs_and_values_that_exist(checks: Any) -> None:
    from autotune.knobs.registry import builtin
    from autotune.testing.knobs import GPU_HOST, GPU_RUN, facts

    given = facts(host=GPU_HOST, run=GPU_RUN)
    for case in checks.knobs.CASES:
        assert not checks.knobs.unknown(case), case.name
        for change in (*case.changes, *case.beside):
            domain = builtin()[change.knob].domain(given)
            # fp16 and cuDNN's attention are not worth a try on every device, and can be had on each.
            assert change.value in domain or change.value in ("fp16", "cudnn", "flash"), (case.name, domain)


def test_a_case_whose_package_is_not_there_is_left_out(checks: Any) -> None:
    fp8 = next(case for case in checks.knobs.CASES if case.name == "fp8")
    assert fp8.needs == "torchao"
    assert checks.knobs.lacks(replace(fp8, needs="no_such_package_here")) == "no_such_package_here"
    assert checks.knobs.lacks(replace(fp8, needs="json")) == ""
    assert checks.knobs.lacks(checks.knobs.CASES[0]) == ""


def test_only_what_is_read_as_applied_in_full_can_be_reported_wrong(checks: Any) -> None:
    def row(seen: str, *statuses: str) -> dict[str, Any]:
        return {"seen": seen, "readings": {str(n): {"status": s} for n, s in enumerate(statuses)}}

    result = {
        "as it is": {"ended": {}},
        "right": row("yes", "applied"),
        "wrong": row("no", "applied", "applied"),
        "half": row("no", "refused", "applied"),
        "nothing": row("no"),
    }
    assert checks.knobs.wrong_knobs(result) == ["wrong"]


def test_what_takes_too_long_is_reported_and_ends_nothing(
    checks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*_: object, timeout: float, **__: object) -> None:
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(subprocess, "run", late)
    reported, readings, ended = checks.knobs.run("conv", (), tmp_path / "trial")
    assert (reported, readings) == (None, [])
    assert "out of time" in ended["last_line"]
    options = SimpleNamespace(seconds=20, tiny=True, device="cpu")
    assert "out of time" in checks.rival.tuned_by_rival(options, "gpt2")["failed"]


def test_memory_is_compared_by_what_the_trial_took(checks: Any) -> None:
    """NVML counts what the driver keeps for itself, nvidia-smi does not: as they stand they never agree."""
    gib = 2**30
    reported: dict[str, Any] = {
        "before_bytes": 1 * gib,
        "nvml_before_bytes": 2 * gib,
        "smi_bytes": 11 * gib,
        "nvml_bytes": 12 * gib,
        "allocator_bytes": 9 * gib,
    }

    def holds(**changed: int | None) -> bool:
        both = {**reported, **changed}
        return checks.memory.holds(both | checks.memory.rises(both))

    assert holds()
    assert checks.memory.rises(reported)["beside_the_allocator_bytes"] == 1 * gib
    assert not holds(nvml_bytes=13 * gib)
    assert not holds(allocator_bytes=11 * gib)
    assert holds(smi_bytes=None, allocator_bytes=None)


@pytest.mark.parametrize(
    ("visible", "used"),
    [(None, 10), ("0", 10), ("1,0", 20), ("GPU-b", 20), ("", None), ("7", None), ("MIG-", None)],
)
def test_memory_in_use_is_that_of_the_device_that_a_trial_takes(
    checks: Any, monkeypatch: pytest.MonkeyPatch, visible: str | None, used: int | None
) -> None:
    rows = [["0", "GPU-aa", "10"], ["1", "GPU-bb", "20"]]
    monkeypatch.setattr(checks.common, "smi", lambda *fields: rows)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert checks.common.used_bytes() == (None if used is None else used * 2**20)


def test_the_rivals_choice_becomes_changes_of_ours(checks: Any) -> None:
    found = {"precision": "amp_bf16", "compile": "reduce-overhead", "channels_last": True, "fused_opt": True}
    changes = {c.knob: c.value for c in checks.rival.changes_of("resnet50", found)}
    assert changes == {
        "precision": "bf16",
        "tf32": "high",
        "cudnn_benchmark": True,
        "compile_mode": "reduce-overhead",
        "channels_last": True,
        "fused_optimizer": True,
    }
    as_is = {"precision": "fp32_default", "compile": "off", "channels_last": False, "fused_opt": False}
    assert checks.rival.changes_of("gpt2", as_is) == ()


def test_what_has_a_result_is_not_made_again(checks: Any, tmp_path: Path) -> None:
    options = SimpleNamespace(out=tmp_path, tiny=False)
    search = next(c for c in checks.all.plan() if c.name == "search")
    timing = checks.all.plan()[0]
    assert timing.name == "timing"
    assert not checks.all.done_before(timing, options)
    (tmp_path / "2026-11-21-timing.json").write_text('{"result": {}}')
    assert checks.all.done_before(timing, options)
    part = tmp_path / "2026-11-21-search.json"
    part.write_text('{"result": {"gpt2": {}}}')
    assert not checks.all.done_before(search, options)
    part.write_text(json.dumps({"result": {key: {} for key in NAMES}}))
    assert checks.all.done_before(search, options)
    short = next(c for c in checks.all.plan() if c.name == "search small_steps")
    reported = tmp_path / "2026-11-21-search-small_steps.json"
    reported.write_text(json.dumps({"result": {"missing": ["ray"]}}))
    assert not checks.all.done_before(short, options)
    reported.write_text(json.dumps({"result": {"small_steps": {}}}))
    assert checks.all.done_before(short, options)


def test_the_summary_names_the_machine_of_this_call(
    checks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({"machine": {"torch": "old"}, "aa": {"code": 0}}))
    options = SimpleNamespace(
        out=tmp_path, tiny=True, device="cpu", minutes=20.0, first="", only=["memory"], again=True,
        machine={"torch": "new"},
    )  # fmt: skip
    monkeypatch.setattr(checks.all, "parsed", lambda made, words: options)
    monkeypatch.setattr(checks.all, "run", lambda check, options, limit_s: {"why": "ended", "code": 0})
    assert checks.all.main([]) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["machine"] == {"torch": "new"}
    assert set(summary) == {"machine", "aa", "memory"}


def test_every_check_is_there_and_every_one_is_described(checks: Any) -> None:
    text = (GPU / "README.md").read_text()
    for check in checks.all.plan():
        assert Path(GPU, check.script).is_file()
        assert Path(check.script).name in text, check.name


def test_a_check_begins_with_nothing_but_the_standard_library(tmp_path: Path) -> None:
    names = sorted(path.stem for path in GPU.glob("*.py"))
    code = "import importlib, sys\nsys.path.insert(0, sys.argv[1])\n"
    code += "for name in sys.argv[2:]: importlib.import_module(name)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(GPU), *names],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def run(script: str, out: Path, *words: str, timeout: float = 600) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, str(GPU / script), "--device", "cpu", "--tiny", "--out", str(out), *words],
        env=environment(out),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    found = sorted(out.glob("*-tiny.json"))
    return done.returncode, json.loads(found[-1].read_text()) if found else {}, done.stdout + done.stderr


@pytest.mark.torch
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("resnet50", ["--small", "--samples", "64", "--batch-size", "16", "--workers", "0", "--epochs", "1"]),
        ("gpt2", ["--small", "--samples", "8", "--batch-size", "4", "--length", "32"]),
        ("vit_b16", ["--small", "--samples", "64", "--batch-size", "16", "--workers", "0", "--epochs", "1"]),
        ("small_steps", ["--small", "--rows", "1024", "--epochs", "1"]),
    ],
)
def test_a_workload_trains(name: str, args: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, str(GPU / "workloads" / f"{name}.py"), *args],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout or name == "vit_b16"


@pytest.mark.torch
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "script",
    [
        "memory.py",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("timing.py", "aa.py", "beside.py")),
    ],
)
def test_a_check_runs_on_a_cpu(script: str, tmp_path: Path) -> None:
    code, reported, message = run(script, tmp_path)
    assert code == 0, message
    assert reported["check"] == script.removesuffix(".py")
    assert reported["machine"]["torch"]
    assert reported["ok"] is None
    if script != "beside.py":
        assert "failed" not in reported["result"]["small_steps"]
    if script == "timing.py":
        (ran,) = reported["result"]["small_steps"]["runs"]
        assert ran["trial"]["throughput"] > 0
        assert ran["stopwatch"] > 0


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_failures_are_named_and_the_next_trial_runs(tmp_path: Path) -> None:
    code, reported, message = run("failures.py", tmp_path)
    assert code == 0, message
    result = reported["result"]
    assert [r["kind"] for r in result["oom"]] == ["oom_cuda", "oom_cuda"]
    assert result["assert"]["kind"] == "crash_exit"
    assert result["killed"]["kind"] == "oom_host"
    assert result["next"]["kind"] == "ok"


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(900)
def test_knobs_are_read_and_their_evidence_kept(tmp_path: Path) -> None:
    code, reported, message = run("knobs.py", tmp_path)
    assert code == 0, message
    case = reported["result"]["fused_optimizer"]
    assert case["readings"]["fused_optimizer"]["status"] == "applied"
    assert case["ended"]["code"] == 0
    assert case["seen"] in ("yes", "unclear")


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1800)
def test_a_second_compile_is_warm(tmp_path: Path) -> None:
    code, reported, message = run("caches.py", tmp_path, timeout=1700)
    assert code == 0, message
    both = reported["result"]["small_steps-default"]
    assert both["published"]
    assert both["warm"]["compile_s"] < both["cold"]["compile_s"]


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.timeout(1800)
def test_the_driver_ends_well_whatever_its_checks_do(tmp_path: Path) -> None:
    code, _, message = run("all.py", tmp_path, "--minutes", "20", "--only", "memory", "aa", timeout=1700)
    assert code == 0, message
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert {summary[name]["code"] for name in ("memory", "aa")} == {0}
    _, _, again = run("all.py", tmp_path, "--minutes", "20", "--only", "memory", timeout=1700)
    assert "there is a result" in again


def test_without_a_device_a_check_says_so(monkeypatch: pytest.MonkeyPatch, checks: Any) -> None:
    import common

    monkeypatch.setattr(common, "machine", lambda: {"devices": [], "cpu": "x"})
    with pytest.raises(SystemExit) as ending:
        checks.knobs.main([])
    assert "no CUDA device" in str(ending.value)


@pytest.mark.gpu
@pytest.mark.parametrize("script", ["timing.py", "memory.py", "failures.py", "knobs.py"])
def test_a_check_holds_on_the_device(script: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(GPU / script), "--out", str(tmp_path)], check=False)
    assert done.returncode == 0
