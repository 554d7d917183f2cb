"""Facts about a machine, from a file tree made up for the purpose."""

import os
import subprocess
import sys
from pathlib import Path

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


ROOM = {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    1000 kB\n"}
WITHIN = {"proc/self/cgroup": "0::/a/b\n"}


@pytest.mark.parametrize(
    ("files", "room"),
    [
        ({}, 1000 * 1024),
        ({**WITHIN, "sys/fs/cgroup/a/b/memory.max": "max\n"}, 1000 * 1024),
        ({**WITHIN, "sys/fs/cgroup/a/b/memory.max": "500\n"}, 1000 * 1024),
        (
            {
                **WITHIN,
                "sys/fs/cgroup/a/b/memory.max": "9000\n",
                "sys/fs/cgroup/a/b/memory.current": "100\n",
                "sys/fs/cgroup/a/memory.max": "1000\n",
                "sys/fs/cgroup/a/memory.current": "700\n",
                "sys/fs/cgroup/a/memory.stat": "anon 5\nfile 900\nactive_file 30\ninactive_file 20\n",
            },
            350,
        ),
        (
            {
                **WITHIN,
                "sys/fs/cgroup/a/b/memory.max": "100\n",
                "sys/fs/cgroup/a/b/memory.current": "120\n",
            },
            0,
        ),
        (
            {
                "proc/self/cgroup": "3:memory:/m\n",
                "sys/fs/cgroup/memory/m/memory.limit_in_bytes": "1000\n",
                "sys/fs/cgroup/memory/m/memory.usage_in_bytes": "900\n",
                "sys/fs/cgroup/memory/m/memory.stat": "inactive_file 1\ntotal_inactive_file 40\n",
            },
            140,
        ),
    ],
)
def test_what_is_taken_inside_a_cgroup_is_no_room_any_more(tmp_path, files, room) -> None:
    """Beyond it the kernel ends who is in there, the driver too."""
    assert host.memory_room_bytes(tree(tmp_path, {**ROOM, **files})) == room


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


def test_allocators_are_found_where_libraries_lie_and_only_those_that_fit_the_machine(tmp_path) -> None:
    mine = Path(sys.executable).read_bytes()[:20]
    other = bytes([*mine[:18], 0xAA, 0xBB])
    machine = f"usr/lib/{os.uname().machine}-linux-gnu"
    for name, header in (
        (f"{machine}/libjemalloc.so.2", mine),
        ("usr/lib64/libjemalloc.so.2", mine),
        (f"{machine}/libtcmalloc_minimal.so.4", other),
        ("usr/local/lib/libtcmalloc.so.4", mine),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(header)
    assert host.allocators(tmp_path) == {
        "jemalloc": str(tmp_path / machine / "libjemalloc.so.2"),
        "tcmalloc": str(tmp_path / "usr/local/lib/libtcmalloc.so.4"),
    }


def test_what_the_dynamic_linker_knows_comes_first(tmp_path, monkeypatch) -> None:
    library = tmp_path / "libjemalloc.so.2"
    library.write_bytes(Path(sys.executable).read_bytes()[:20])
    ldconfig = tmp_path / "ldconfig"
    ldconfig.write_text(f"#!/bin/sh\necho '	libjemalloc.so.2 (libc6) => {library}'\n")
    ldconfig.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert host.allocators()["jemalloc"] == str(library)


@pytest.mark.parametrize(
    ("text", "mode"),
    [("always [madvise] never\n", "madvise"), ("[always] madvise never", "always"), ("", "")],
)
def test_the_mode_of_huge_pages_is_the_word_in_brackets(tmp_path, text, mode) -> None:
    files = {"sys/kernel/mm/transparent_hugepage/enabled": text} if text else {}
    assert host.read_host(tree(tmp_path, files)).huge_pages == mode


def test_a_c_compiler_is_found_by_itself(tmp_path, monkeypatch) -> None:
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    assert (host.c_compiler(), host.compiler()) == (str(compiler), "")
    own = tmp_path / "mycc"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    monkeypatch.setenv("CC", f"{own} -O2")
    assert host.c_compiler() == str(own)
