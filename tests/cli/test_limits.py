"""What a machine really lacks, full disks and limits of the shell, ends with one sentence and 6."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from inline_search import inline
from small_disks import MIB, fill, small_disk

from autotune.launch.fake import COMPUTE_BOUND

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from small_disks import SmallDisk

__all__ = ["small_disk"]

ROOT = Path(__file__).resolve().parents[2]
SEARCH = ("search", "--script", "train.py", "--budget", "40s", "--driver", "inline", "--quiet")
SCRIPT = "import argparse\nprint('trained')\n"
OTHER_UID = 64123
"""Of nobody on any machine, so that nobody's processes count against its limit."""

pytestmark = pytest.mark.thorough


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "train.py").write_text(SCRIPT)
    return place


def started(
    argv: Sequence[str],
    folder: Path,
    home: Path,
    *,
    limits: Mapping[int, int] | None = None,
    before: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, under these limits."""

    def limit() -> None:
        for which, most in (limits or {}).items():
            resource.setrlimit(which, (most, most))

    environ = {
        **os.environ,
        "AUTOTUNE_HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        [*before, sys.executable, "-m", "autotune", *argv],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=limit,
        check=False,
    )


def sentence(done: subprocess.CompletedProcess[str]) -> str:
    """Its one error, with the remedy; nothing of Python's or SQLite's own is shown."""
    reported = done.stderr
    assert done.returncode == 6, reported
    assert "internal error" not in reported
    for foreign in ("Traceback", "[SQL", "sqlite3", "0.00 GiB"):
        assert foreign not in reported + done.stdout
    errors = [line for line in reported.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, reported
    assert "\nhint: " in reported
    return reported


def test_a_home_on_a_full_disk_is_named_with_its_room(folder: Path, small_disk: SmallDisk) -> None:
    home = small_disk("home", 4 * MIB, free_bytes=0)
    reported = sentence(started(SEARCH, folder, home / "autotune"))
    assert f"the disk of {home}/" in reported
    assert "is full (" in reported
    assert "set AUTOTUNE_HOME" in reported


def test_a_disk_that_is_too_small_for_a_trial_is_named_with_both_amounts(
    folder: Path, small_disk: SmallDisk
) -> None:
    home = small_disk("home", 24 * MIB)
    reported = sentence(started(SEARCH, folder, home / "autotune"))
    assert " MiB free; a trial needs 32.0 MiB" in reported
    assert "autotune resume" in reported


def test_a_disk_that_fills_up_between_two_verbs_is_named(folder: Path, small_disk: SmallDisk) -> None:
    home = small_disk("home", 64 * MIB)
    assert started(("list",), folder, home / "autotune").returncode == 0
    fill(home)
    reported = sentence(started(SEARCH, folder, home / "autotune"))
    assert str(home) in reported


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_an_answer_that_the_working_folder_has_no_room_for_is_kept_in_the_study(
    cli, script: Path, monkeypatch: pytest.MonkeyPatch, small_disk: SmallDisk, more: tuple[str, ...]
) -> None:
    full = small_disk("work", 2 * MIB, free_bytes=0)
    script.write_text(SCRIPT)
    inline(monkeypatch, replace(COMPUTE_BOUND, gains={"precision": {"bf16": 0.5}}))
    words = ("--set", "precision=fp32,bf16", "--knob", "precision", "--out", str(full / "best.yaml"))
    code, out, err = cli(
        "search", "--script", "train.py", "--budget", "4m", "--driver", "inline", *more, *words
    )
    assert code == 6
    assert f"{full}/best.yaml could not be written: the disk of {full} is full (" in err
    assert "autotune show" in err
    assert not (full / "best.yaml").exists()
    if more:
        assert json.loads(out)["error"]["kind"] == "DiskFull"
    assert cli("show")[0] == 0


def test_a_report_that_finds_no_room_is_an_error_with_its_place(
    cli, script: Path, monkeypatch: pytest.MonkeyPatch, small_disk: SmallDisk
) -> None:
    script.write_text(SCRIPT)
    inline(monkeypatch, COMPUTE_BOUND)
    cli("search", "--script", "train.py", "--budget", "4m", "--driver", "inline", "--quiet")
    full = small_disk("work", 2 * MIB, free_bytes=0)
    code, _out, err = cli("report", "--out", str(full / "report.html"))
    assert code == 6, err
    assert f"the disk of {full} is full (" in err


@pytest.mark.parametrize("most", [5, 8, 12])
def test_a_limit_on_open_files_is_named(folder: Path, tmp_path: Path, most: int) -> None:
    reported = sentence(started(SEARCH, folder, tmp_path / "home", limits={resource.RLIMIT_NOFILE: most}))
    assert f"too many files are open: this process may open {most}" in reported
    assert "ulimit -n" in reported


@pytest.mark.parametrize("mib", [300, 400])
def test_a_limit_on_address_space_is_named(folder: Path, tmp_path: Path, mib: int) -> None:
    reported = sentence(started(SEARCH, folder, tmp_path / "home", limits={resource.RLIMIT_AS: mib * MIB}))
    assert f"this process may use {mib}.0 MiB of address space" in reported
    assert "ulimit -v" in reported


def test_a_local_ray_is_not_started_where_it_would_end_the_process(folder: Path, tmp_path: Path) -> None:
    argv = [word for word in SEARCH if word not in ("--driver", "inline")]
    reported = sentence(started(argv, folder, tmp_path / "home", limits={resource.RLIMIT_AS: 1400 * MIB}))
    assert "may use 1.4 GiB of address space, and a local Ray needs 3.0 GiB" in reported
    assert "--driver inline" in reported


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may enter and write to."""
    place = Path(tempfile.mkdtemp(prefix="at-public-"))
    place.chmod(0o777)
    yield place
    shutil.rmtree(place)


def test_a_limit_on_processes_is_named(public: Path) -> None:
    setpriv = shutil.which("setpriv")
    if os.geteuid() or setpriv is None:
        pytest.skip("only root may run a command as somebody else")
    (public / "train.py").write_text(SCRIPT)
    # Limits do not bind root. The other user may still read the interpreter, wherever it lies.
    caps = "+dac_read_search"
    other = (
        setpriv,
        f"--reuid={OTHER_UID}",
        "--clear-groups",
        f"--inh-caps={caps}",
        f"--ambient-caps={caps}",
        f"--bounding-set={caps}",
    )
    limits = {resource.RLIMIT_NPROC: 1}
    reported = sentence(started(SEARCH, public, public / "home", limits=limits, before=other))
    assert "no more threads or processes can be started: this user may have 1 of them" in reported
    assert "ulimit -u" in reported
