"""Facts about a machine, from a file tree made up for the purpose."""

import os
import subprocess
import sys

import psutil
import pytest

from autotune.inspection import host


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "max 100000\n"}, 8),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/cpu.max": "250000 100000\n"}, 3),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
            },
            4,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/x\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
    ],
)
def test_cpus_are_bounded_by_affinity_and_quota(tmp_path, files, cpus) -> None:
    assert host.usable_cpus(tree(tmp_path, files)) == cpus


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "1000000\n"}, 1000000),
        ({"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"}, None),
        (
            {
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "5\n",
                "sys/fs/cgroup/a/b/memory.max": "9\n",
            },
            5,
        ),
        ({"proc/self/cgroup": "3:memory:/m\n", "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "777\n"}, 777),
        (
            {
                "proc/self/cgroup": "3:memory:/m\n",
                "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "9223372036854771712\n",
            },
            None,
        ),
    ],
)
def test_memory_is_bounded_by_the_tightest_cgroup(tmp_path, files, limit) -> None:
    assert host.memory_limit_bytes(tree(tmp_path, files)) == (limit or psutil.virtual_memory().total)


def test_hyperthreads_count_once_and_flags_are_read(tmp_path) -> None:
    cpuinfo = "\n\n".join(
        f"processor\t: {n}\nmodel name\t: Big CPU\nphysical id\t: 0\n"
        f"core id\t\t: {n % 4}\nflags\t\t: fpu avx2 avx512_bf16"
        for n in range(8)
    )
    facts = host.read_host(tree(tmp_path, {"proc/cpuinfo": cpuinfo}))
    assert (facts.cpus, facts.physical_cores, facts.cpu_model) == (8, 4, "Big CPU")
    assert facts.cpu_flags == ("avx2", "avx512_bf16")
    assert facts.has_bf16


def test_a_compiler_named_by_the_user_comes_first(tmp_path, monkeypatch) -> None:
    compiler = tmp_path / "mycc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", f"{compiler} -O2")
    assert host.compiler() == str(compiler)


def test_without_a_compiler_it_is_empty(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    assert host.compiler() == ""


def test_looking_at_the_machine_imports_no_torch() -> None:
    code = (
        "import sys; from autotune.inspection.host import host_facts; f = host_facts(); "
        "print(f.cpus >= 1 and f.memory_bytes > 0, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]
