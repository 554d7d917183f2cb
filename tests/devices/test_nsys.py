"""Nsight Systems' command: found by name or by variable, with the options that limit what it records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.devices.nsys import find_nsys, nsys_command

if TYPE_CHECKING:
    from pathlib import Path


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_it_is_found_on_the_path_or_by_the_variable(tmp_path: Path) -> None:
    usual, own = executable(tmp_path / "bin" / "nsys"), executable(tmp_path / "opt" / "nsys-2025")
    path = {"PATH": str(usual.parent)}
    assert find_nsys(path) == str(usual)
    assert find_nsys({**path, "NSYS": str(own)}) == str(own)
    assert find_nsys({"PATH": str(tmp_path)}) == ""
    assert find_nsys({**path, "NSYS": str(tmp_path / "none")}) == "", "another one than was named is none"


def test_a_window_is_opened_and_closed_by_the_process_itself() -> None:
    command = nsys_command("/opt/nsys", "/t/profile.nsys-rep", ("python", "train.py", "-v"), window=True)
    assert command[:2] == ("/opt/nsys", "profile")
    assert command[-3:] == ("python", "train.py", "-v")
    assert {"--output=/t/profile", "--force-overwrite=true", "--trace=cuda,nvtx,osrt"} <= set(command)
    assert {"--capture-range=cudaProfilerApi", "--capture-range-end=stop"} <= set(command)
    assert all(word.startswith("--") for word in command[2:-3])


def test_without_a_device_all_of_it_is_recorded() -> None:
    command = nsys_command("/opt/nsys", "/t/profile.nsys-rep", ("python",), window=False)
    assert "--trace=nvtx,osrt" in command
    assert not any("capture" in word for word in command)
