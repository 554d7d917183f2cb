# ruff: noqa: E501, PTH110 (scripts as lines; os itself is what is tested)
"""Redirection inside Python: each way to write lands in the shadow, and the script sees it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

ROOT = str(Path(__file__).resolve().parents[3])


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "old.txt").write_text("old")
    (folder / "sub" / "a.txt").write_text("a")
    (folder / "sub" / "deep" / "b.txt").write_text("b")
    (tmp_path / "trial" / "shadow").mkdir(parents=True)
    return folder


def run(project: Path, text: str, *, protected: str = "", torch: bool = False) -> None:
    """Run the text in a process with the redirection in place; its assertions have to hold."""
    shadow = project.parent / "trial" / "shadow"
    head = (
        f"import sys; sys.path.insert(0, {ROOT!r})\nimport os, io, shutil, glob, tempfile, pathlib\n"
        f"from pathlib import Path\nfrom autotune.trial.entry import file_redirect as shadow\n"
        f"shadow.install([{protected or str(project)!r}], {str(shadow)!r})\n"
    )
    code = head + textwrap.dedent(text)
    flags = [] if torch else ["-S"]
    done = subprocess.run(
        [sys.executable, *flags, "-c", code], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(p.relative_to(folder)): (p.lstat().st_mtime_ns, b"" if p.is_dir() else p.read_bytes())
        for p in sorted(folder.rglob("*"))
    }


CASES = {
    "write": "open('new.txt', 'w').write('x'); assert open('new.txt').read() == 'x' and 'new.txt' in os.listdir()",
    "append": "open('old.txt', 'a').write('+'); assert open('old.txt').read() == 'old+'",
    "binary update": "f = open('old.txt', 'rb+'); f.write(b'O'); f.close(); assert open('old.txt').read() == 'Old'",
    "exclusive": """
        try: open('old.txt', 'x'); raise SystemExit('created')
        except FileExistsError: pass
        open('x.txt', 'x').close(); assert os.path.exists('x.txt')""",
    "pathlib": """
        p = Path('n') / 'm'; p.mkdir(parents=True); (p / 'f').write_text('1'); assert (p / 'f').read_text() == '1'
        assert [q.name for q in p.iterdir()] == ['f'] and (p / 'f').is_file() and list(Path('n').rglob('f'))
        (p / 'f').rename(p / 'g'); assert not (p / 'f').exists(); (p / 'g').unlink(); p.rmdir(); assert not p.exists()""",
    "touch": "Path('t').touch(); assert Path('t').stat().st_size == 0; Path('t').touch(exist_ok=True)",
    "makedirs twice": "os.makedirs('sub/new/x', exist_ok=True); os.makedirs('sub/new/x', exist_ok=True)",
    "remove": """
        os.remove('old.txt'); assert not os.path.exists('old.txt')
        try: os.remove('old.txt'); raise SystemExit('twice')
        except FileNotFoundError: pass
        open('old.txt', 'w').write('again'); assert open('old.txt').read() == 'again'""",
    "rename over": "os.replace('old.txt', 'sub/a.txt'); assert open('sub/a.txt').read() == 'old'",
    "rename a folder": """
        os.rename('sub', 'moved'); assert open('moved/deep/b.txt').read() == 'b' and not os.path.exists('sub')
        assert not os.path.exists('sub/a.txt') and sorted(os.listdir('moved')) == ['a.txt', 'deep']""",
    "rmtree and again": """
        shutil.rmtree('sub'); assert not os.path.isdir('sub')
        os.mkdir('sub'); assert os.listdir('sub') == []""",
    "rmdir of a full folder": """
        try: os.rmdir('sub'); raise SystemExit('removed')
        except OSError: pass""",
    "walk and glob": """
        open('sub/z.txt', 'w').close(); os.remove('sub/a.txt')
        assert sorted(glob.glob('sub/*.txt')) == ['sub/z.txt']
        assert sorted(f for _, _, fs in os.walk('.') for f in fs) == ['b.txt', 'old.txt', 'z.txt']""",
    "temporary and move": """
        f = tempfile.NamedTemporaryFile('w', dir='.', delete=False); f.write('t'); f.close()
        os.replace(f.name, 'final.txt'); assert open('final.txt').read() == 't'""",
    "copy": "shutil.copytree('sub', 'copy'); assert open('copy/deep/b.txt').read() == 'b'",
    "chmod": "os.chmod('old.txt', 0o640); assert os.stat('old.txt').st_mode & 0o777 == 0o640",
    "hard link": "os.link('old.txt', 'hard'); assert open('hard').read() == 'old'",
    "missing folder": """
        try: open('no/such/x', 'w'); raise SystemExit('made')
        except FileNotFoundError: pass""",
    "parent folder link": """
        os.symlink('sub', 'ln'); open('ln/a.txt', 'a').write('!'); assert open('sub/a.txt').read() == 'a!'""",
    "sqlite": """
        import sqlite3; c = sqlite3.connect('d.db'); c.execute('create table t (x)'); c.commit(); c.close()
        assert sqlite3.connect('d.db').execute('select count(*) from t').fetchone() == (0,)""",
    "bytes path": "open(b'bb', 'wb').close(); assert b'bb' in os.listdir(b'.')",
    "change folder": "os.mkdir('w'); os.chdir('sub'); open('q', 'w').close(); assert os.path.exists('../sub/q')",
    "forked child": """
        open('one', 'w').write('1'); pid = os.fork()
        if pid == 0: os._exit(0 if open('one').read() == '1' else 1)
        assert os.waitpid(pid, 0)[1] == 0""",
    "logging": "import logging; logging.FileHandler('run.log').emit(logging.makeLogRecord({'msg': 'm'})); assert os.path.getsize('run.log')",
    "raw file": """
        with io.FileIO('raw', 'w') as f: f.write(b'r'); assert isinstance(f, io.FileIO)
        assert open('raw').read() == 'r' and isinstance(open('raw', 'rb').raw, io.FileIO)
        assert io.FileIO('raw').read() == b'r' and not isinstance(io.BytesIO(), io.FileIO)
        class Mine(io.FileIO): pass
        assert isinstance(Mine('old.txt', 'a'), Mine) and not isinstance(io.FileIO('raw'), Mine)""",
    "safetensors": """
        from types import SimpleNamespace as N
        def save_file(tensors, filename, metadata=None): os.close(shadow._real['open'](filename, 0o101))
        m = N(save_file=save_file, load_file=lambda filename: shadow._real['stat'](filename))
        shadow.wrap_safetensors(m)
        m.save_file({}, 'm.safetensors'); m.save_file({}, filename=Path('sub/m')); m.load_file('m.safetensors')
        assert os.path.exists('m.safetensors') and os.path.exists('sub/m')""",
    "descriptor": "fd = os.open('old.txt', os.O_WRONLY | os.O_APPEND); os.write(fd, b'+'); os.close(fd); assert os.path.getsize('old.txt') == 4",
}


@pytest.mark.parametrize("text", CASES.values(), ids=CASES.keys())
def test_a_write_lands_in_the_shadow_and_is_seen(project: Path, text: str) -> None:
    before = state(project)
    run(project, text)
    assert state(project) == before


def test_protecting_the_root_leaves_temporary_files_and_devices_alone(project: Path, tmp_path: Path) -> None:
    run(project, "open('/dev/null', 'w').write('x'); f = tempfile.mkstemp(); os.remove(f[1])", protected="/")


def test_the_trials_own_folder_stays_real(project: Path) -> None:
    trial = project.parent / "trial"
    run(project, f"open({str(trial / 'events')!r}, 'a').write('e')", protected=str(project.parent))
    assert (trial / "events").read_text() == "e"


def test_reads_cost_nothing_before_the_first_write(project: Path) -> None:
    run(
        project,
        """
        import time
        def cost(n=2000):
            begun = time.perf_counter()
            for _ in range(n): shadow._installed.view('sub/a.txt')
            return (time.perf_counter() - begun) / n
        assert cost() < 20e-6, cost()""",
    )


@pytest.mark.torch
def test_torch_checkpoints_are_redirected(project: Path) -> None:
    pytest.importorskip("torch")
    before = state(project)
    run(
        project,
        """
        import torch; shadow.wrap_torch(torch)
        torch.save({'a': 1}, 'ckpt.pt'); assert torch.load('ckpt.pt') == {'a': 1}
        torch.save({'a': 2}, Path('sub/ckpt.pt')); assert torch.load(f='sub/ckpt.pt') == {'a': 2}
        assert os.path.getsize('ckpt.pt') > 0
        import warnings; warnings.simplefilter('ignore')
        m = torch.jit.script(torch.nn.Linear(2, 1)); m.save('m.pt'); torch.jit.load('m.pt')""",
        torch=True,
    )
    assert state(project) == before
    assert os.path.exists(project.parent / "trial" / "shadow" / str(project)[1:] / "ckpt.pt")


OTHER_DISK = Path("/dev/shm")


@pytest.mark.skipif(
    not os.access(OTHER_DISK, os.W_OK) or OTHER_DISK.stat().st_dev == Path("/tmp").stat().st_dev,
    reason="there is one disk only",
)
def test_folders_and_files_are_moved_from_another_disk(project: Path) -> None:
    """Copies lie on the study's disk, which need not be the project's: no rename fails for that."""
    before = state(project)
    far = tempfile.mkdtemp(prefix="autotune-test-", dir=OTHER_DISK)
    text = f"""
        far, ours = Path({far!r}), Path({str(project.parent / "trial" / "output")!r})
        (far / 'run' / 'deep').mkdir(parents=True); (far / 'run' / 'deep' / 'w').write_text('w')
        (far / 'old.txt').write_text('new'); os.symlink('deep', far / 'run' / 'link')
        os.rename(far / 'run', 'run'); os.replace(far / 'old.txt', 'old.txt')
        assert Path('run/deep/w').read_text() == 'w' and os.readlink('run/link') == 'deep'
        assert Path('old.txt').read_text() == 'new' and os.listdir(far) == []
        (far / 'kept').write_text('kept'); ours.mkdir(); os.replace(far / 'kept', ours / 'kept')
        assert (ours / 'kept').read_text() == 'kept' and os.listdir(far) == []
    """
    try:
        run(project, text)
        assert state(project) == before
    finally:
        shutil.rmtree(far)
