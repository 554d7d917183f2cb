"""Facts about a machine that has PyTorch and nothing else."""

import sys

import pytest

from autotune.inspection import host


@pytest.fixture
def alone(monkeypatch):
    """Importing psutil fails, as where it is not installed."""
    monkeypatch.setitem(sys.modules, "psutil", None)


def test_memory_comes_from_the_kernel(alone, tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:       24684084 kB\nMemFree: 5 kB\n")
    assert host.memory_limit_bytes(tmp_path) == 24684084 * 1024


def test_memory_is_known_where_the_kernel_is_silent_too(alone, tmp_path):
    assert host.memory_limit_bytes(tmp_path) > 1 << 20


def test_cores_are_counted_by_what_may_be_used(alone, tmp_path):
    found = host.read_host(tmp_path)
    assert found.physical_cores == found.cpus


def test_with_and_without_it_this_machine_has_the_same_memory(monkeypatch):
    psutil = pytest.importorskip("psutil")
    total = psutil.virtual_memory().total
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert host.memory_limit_bytes() <= total
