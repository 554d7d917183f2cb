# ruff: noqa: E501, PTH114, PTH115, PTH118 (scripts as lines; os itself is what is tested)
"""A trial may do what it likes to the user's files: they are the same afterwards, and it sees its own writes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.launch.guard import namespace
from autotune.launch.workspace import isolation as enclosure
from autotune.model.measurement import Measurement
from autotune.model.trial import Failure

HAS_OVERLAY = enclosure.available() == "overlay"

PYTHON_WRITES = """
import shutil
from pathlib import Path as P
here = P.cwd()
P('ckpt.pt').write_bytes(b'weights'); assert P('ckpt.pt').read_bytes() == b'weights'
with open('log.txt', 'a') as f: f.write('more')
assert open('log.txt').read() == 'old\\nmore', open('log.txt').read()
with open('config.json', 'r+') as f: f.truncate(2)
assert P('config.json').stat().st_size == 2
open('emptied.txt', 'w').close(); assert os.path.getsize('emptied.txt') == 0
os.rename('moved.txt', 'moved2.txt'); assert not os.path.exists('moved.txt') and open('moved2.txt').read() == 'move me'
os.remove('gone.txt'); assert 'gone.txt' not in os.listdir('.')
try: open('gone.txt'); raise AssertionError('still there')
except FileNotFoundError: pass
os.makedirs('runs/a/b', exist_ok=True); P('runs/a/b/x').write_text('1'); assert os.listdir('runs/a/b') == ['x']
assert sorted(n for _, d, f in os.walk('data') for n in d + f) == ['inner', 'kept.bin', 'raw.bin']
shutil.rmtree('data/inner'); assert os.listdir('data') == ['raw.bin']
os.replace('data/raw.bin', 'ckpt.pt'); assert P('ckpt.pt').read_bytes() == b'raw'
assert os.listdir('data') == []
P('../sibling.txt').write_text('s'); assert P('../sibling.txt').read_text() == 's'
home = P(os.environ['HOME']); (home / '.cache').mkdir(exist_ok=True); (home / '.cache' / 'y').write_text('y')
with open(home / 'theirs.txt', 'ab') as f: f.write(b'!')
assert (home / 'theirs.txt').read_bytes() == b'home!'
os.symlink('ckpt.pt', 'latest'); assert open('latest', 'rb').read() == b'raw'
os.chmod('log.txt', 0o600); os.utime('log.txt', (1, 1)); assert os.stat('log.txt').st_mtime == 1
fd = os.open('low.txt', os.O_CREAT | os.O_WRONLY | os.O_TRUNC); os.write(fd, b'low'); os.close(fd)
assert P('low.txt').read_text() == 'low'
with open('link_to_log', 'a') as f: f.write('by link')
shutil.copy('config.json', 'runs/config.json')
os.truncate('cut.txt', 1); assert open('cut.txt').read() == 'c'
"""
SHELL_WRITES = """
import subprocess
subprocess.run('echo x > by_shell.txt; echo y >> log.txt; rm cut.txt; mkdir -p d/e; mv config.json d/; echo z > ../z',
               shell=True, check=True)
assert open('by_shell.txt').read() == 'x\\n' and not os.path.exists('cut.txt') and os.path.exists('d/config.json')
"""


def tree(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for place, names, files in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            found[path] = (os.lstat(path).st_mode, os.readlink(path) if os.path.islink(path) else "")
        for name in files:
            path = os.path.join(place, name)
            status = os.lstat(path)
            data = os.readlink(path).encode() if os.path.islink(path) else Path(path).read_bytes()
            found[path] = (status.st_mode, status.st_mtime_ns, hashlib.sha256(data).hexdigest())
    return found


@pytest.fixture
def files(user: Path) -> Path:
    for name, text in {
        "log.txt": "old\n",
        "config.json": '{"a": 1}',
        "emptied.txt": "full",
        "moved.txt": "move me",
        "gone.txt": "delete me",
        "cut.txt": "cut me",
    }.items():
        (user / name).write_text(text)
    (user / "data" / "inner").mkdir(parents=True)
    (user / "data" / "raw.bin").write_bytes(b"raw")
    (user / "data" / "inner" / "kept.bin").write_bytes(b"kept")
    (user / "link_to_log").symlink_to("log.txt")
    (user.parent / "theirs.txt").write_text("home")
    return user


@pytest.mark.skipif(not HAS_OVERLAY, reason="this machine lets nobody mount an overlay")
def test_under_an_overlay_nothing_of_the_user_changes_whatever_writes(
    runner: Any, assignment: Any, files: Path
) -> None:
    made = assignment(PYTHON_WRITES + SHELL_WRITES + "good()")
    before = tree(files.parent)
    (ended,) = runner(isolation="overlay").run(made)
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert tree(files.parent) == before


@pytest.mark.skipif(not HAS_OVERLAY, reason="this machine lets nobody mount an overlay")
def test_the_study_may_lie_inside_the_protected_home(
    runner: Any, assignment: Any, files: Path, tmp_path: Path
) -> None:
    study = files.parent / ".local" / "study"
    (study / "trials").mkdir(parents=True)
    made = assignment(PYTHON_WRITES + SHELL_WRITES + "good()")
    before = tree(files)
    (ended,) = runner(isolation="overlay", study_dir=study).run(made)
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert tree(files) == before
    assert (files.parent / "theirs.txt").read_text() == "home"
    assert not (files.parent / ".cache").exists()
    trial = study / "trials" / f"t0000-a1-{os.getpid() % 2**24:06x}"
    assert {p.name for p in trial.iterdir()} >= {"result.json", "events.jsonl"}
    assert not (trial / "upper").exists()


@pytest.mark.skipif(not HAS_OVERLAY, reason="this machine lets nobody mount an overlay")
def test_an_absolute_path_far_from_the_project_is_protected_too(
    runner: Any, assignment: Any, tmp_path: Path
) -> None:
    far = tmp_path / "elsewhere"
    far.mkdir()
    text = f"p = Path({str(far)!r}) / 'w'; p.write_text('1'); assert p.read_text() == '1'\ngood()"
    (ended,) = runner(isolation="overlay").run(assignment(text))
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert list(far.iterdir()) == []


def test_redirected_python_writes_change_nothing_of_the_user(
    runner: Any, assignment: Any, files: Path
) -> None:
    made = assignment(PYTHON_WRITES + "good()")
    before = tree(files.parent)
    (ended,) = runner(isolation="redirect").run(made)
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert tree(files.parent) == before
    assert "wrote_outside" not in ended.outcome.contamination.flags


def test_what_gets_past_the_redirection_is_reported(runner: Any, assignment: Any, files: Path) -> None:
    past = "import subprocess; subprocess.run('echo x >> log.txt', shell=True, check=True)\n"
    (ended,) = runner(isolation="redirect").run(assignment(past + "good()"))
    assert isinstance(ended.outcome, Measurement)
    assert "wrote_outside" in ended.outcome.contamination.flags
    (ended,) = runner(isolation="redirect").run(assignment(past + "sys.exit(1)", uid="t0001-a1-000000"))
    assert isinstance(ended.outcome, Failure)
    assert str(files / "log.txt") in str(ended.outcome.evidence["wrote_outside"])


@pytest.mark.skipif(not HAS_OVERLAY, reason="this machine lets nobody mount an overlay")
def test_a_folder_that_cannot_be_overlaid_is_protected_by_redirection(
    runner: Any, assignment: Any, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert enclosure.available(must=(str(files),)) == "overlay"
    # Device nodes and what lies among them stay what they are under an overlay.
    assert enclosure.available(must=("/dev/shm",)) == "redirect"
    monkeypatch.setattr(enclosure, "protected", lambda *_: (str(files), "/dev/shm"))
    made = assignment("assert plan.shadow_dir\nPath('log.txt').write_text('new')\ngood()")
    before = tree(files)
    (ended,) = runner(isolation="overlay").run(made)
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert tree(files) == before


ENCLOSED = """
import json, multiprocessing, os, sys
sys.path.insert(0, {ours!r})
import namespace as enter
reported = {{}}
shm, base = "/dev/shm", {base!r}
try:
    enter._own_namespace()
    enter._mount("none", "/", None, enter._MS_REC | enter._MS_PRIVATE)
    enter._mount("fresh", shm, "tmpfs", enter._MS_NOSUID, "size=48m,nr_inodes=777,mode=1777")
except OSError as error:
    sys.exit("not here: " + str(error))
outside = os.open(shm, os.O_RDONLY)
for name in ("torch_1_2_3", *{names!r}):
    with open(os.path.join(shm, name), "w") as file:
        file.write(name)
    if os.geteuid() == 0:
        os.chown(os.path.join(shm, name), {owner}, -1)
if {links!r}:
    os.symlink("theirs", os.path.join(shm, "link"))
    os.lchown(os.path.join(shm, "link"), {owner}, -1)
before = os.stat(shm).st_dev
try:
    enter.enter(base, [base], {must!r}, shares={shares!r})
except OSError as error:
    sys.exit("not here: " + str(error))
have = os.statvfs(shm)
reported["private"] = os.stat(shm).st_dev != before
reported["seen"] = sorted(os.listdir(shm))
reported["read"] = [open(os.path.join(shm, name)).read() for name in reported["seen"]]
reported["like"] = [have.f_blocks * have.f_frsize, have.f_files, bool(have.f_flag & os.ST_NOSUID)]
reported["mode"] = oct(os.stat(shm).st_mode & 0o7777)
with multiprocessing.Semaphore(), open(os.path.join(shm, "cache"), "wb") as file:
    file.write(bytes(4096))
reported["outside"] = sorted(os.listdir(outside))
print(json.dumps(reported))
"""
OTHER = 12345


def in_shared_memory(tmp_path: Path, *names: str, owner: int = 0, **more: Any) -> dict[str, Any]:
    """What an enclosed process finds in /dev/shm, and leaves in that of a machine on which these lie there."""
    values = {"must": [], "shares": False, "links": False, **more}
    (tmp_path / "trial").mkdir(exist_ok=True)
    text = ENCLOSED.format(
        ours=str(Path(namespace.__file__).parent),
        base=str(tmp_path / "trial"),
        names=names,
        owner=owner or os.geteuid(),
        **values,
    )
    done = subprocess.run([sys.executable, "-S", "-c", text], capture_output=True, text=True, check=False)
    if "not here" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not HAS_OVERLAY, reason="this machine lets nobody mount an overlay")
def test_shared_memory_is_the_trials_own_and_as_large_as_the_machines(tmp_path: Path) -> None:
    reported = in_shared_memory(tmp_path)
    assert reported["private"]
    assert (reported["seen"], reported["outside"]) == ([], ["torch_1_2_3"])
    assert (reported["like"], reported["mode"]) == ([48 << 20, 777, True], "0o1777")


@pytest.mark.skipif(not HAS_OVERLAY, reason="this machine lets nobody mount an overlay")
def test_a_replay_that_left_its_journal_in_shared_memory_costs_no_trial_its_own(tmp_path: Path) -> None:
    reported = in_shared_memory(tmp_path, "autotune-replay-x1")
    assert reported["private"]
    assert (reported["seen"], reported["outside"]) == ([], ["autotune-replay-x1", "torch_1_2_3"])


@pytest.mark.skipif(not HAS_OVERLAY, reason="this machine lets nobody mount an overlay")
@pytest.mark.parametrize(
    ("names", "more"),
    [
        (("dataset",), {}),  # a script may read it, and replace or remove it
        ((), {"must": ["/dev/shm"]}),
        ((), {"shares": True}),
    ],
)
def test_shared_memory_stays_the_machines_where_something_there_may_be_missed(
    tmp_path: Path, names: tuple[str, ...], more: dict[str, Any]
) -> None:
    reported = in_shared_memory(tmp_path, *names, **more)
    assert not reported["private"]
    assert reported["seen"] == sorted([*names, "torch_1_2_3"])
    assert reported["outside"] == sorted([*names, "cache", "torch_1_2_3"])


@pytest.mark.skipif(not HAS_OVERLAY or os.geteuid() != 0, reason="nothing can be given to another user here")
def test_what_other_users_have_in_shared_memory_is_there_as_before(tmp_path: Path) -> None:
    reported = in_shared_memory(tmp_path, "theirs", owner=OTHER, links=True)
    assert reported["private"]
    assert (reported["seen"], reported["read"]) == (["link", "theirs"], ["theirs", "theirs"])
    assert reported["outside"] == ["link", "theirs", "torch_1_2_3"]
    many = in_shared_memory(tmp_path, *(f"theirs{n}" for n in range(65)), owner=OTHER)
    assert not many["private"]


@pytest.mark.skipif(not HAS_OVERLAY, reason="this machine lets nobody mount an overlay")
@pytest.mark.parametrize("shares", [False, True])
def test_what_a_trial_keeps_in_shared_memory_goes_with_it(
    runner: Any, assignment: Any, *, shares: bool
) -> None:
    """A cache of two gibibytes under a name of the script's own, once a trial, fills the machine."""
    kept = Path(f"/dev/shm/cache_{os.getpid()}")
    if not shares and any(entry.lstat().st_uid == os.geteuid() for entry in Path("/dev/shm").iterdir()):
        pytest.skip("something of ours lies in /dev/shm")
    text = (
        f"p = Path({str(kept)!r}); p.write_bytes(bytes(1 << 20)); assert p.stat().st_size == 1 << 20\ngood()"
    )
    made = assignment(text)
    env = {**made.launch.env, **({"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"} if shares else {})}
    made = replace(made, launch=replace(made.launch, env=env))
    try:
        (ended,) = runner(isolation="overlay").run(made)
        assert isinstance(ended.outcome, Measurement), ended.outcome
        others = [e for e in Path("/dev/shm").iterdir() if e != kept and e.lstat().st_uid == os.geteuid()]
        if not shares and others:
            pytest.skip("something of ours came to /dev/shm meanwhile")
        assert kept.exists() is shares
    finally:
        kept.unlink(missing_ok=True)


def test_a_manifest_reports_changed_added_and_removed_files(tmp_path: Path) -> None:
    for name in ("same", "changed", "removed"):
        (tmp_path / name).write_text(name)
    before = enclosure.manifest([str(tmp_path)])
    (tmp_path / "changed").write_text("longer than before")
    (tmp_path / "removed").unlink()
    (tmp_path / "added").write_text("")
    found = enclosure.violations(before, enclosure.manifest([str(tmp_path)]))
    assert [Path(p).name for p in found] == ["added", "changed", "removed"]


def test_a_manifest_reports_folders_and_permissions(tmp_path: Path) -> None:
    for name in ("same", "removed"):
        (tmp_path / name).mkdir()
    (tmp_path / "opened").touch(mode=0o600)
    before = enclosure.manifest([str(tmp_path)])
    (tmp_path / "removed").rmdir()
    (tmp_path / "added").mkdir()
    (tmp_path / "opened").chmod(0o644)
    # What Python leaves behind is no change, nor is the time of the folder that it lies in.
    (tmp_path / "same" / "__pycache__").mkdir()
    found = enclosure.violations(before, enclosure.manifest([str(tmp_path)]))
    assert [Path(p).name for p in found] == ["added", "opened", "removed"]


def test_protected_folders_are_the_git_root_the_working_directory_and_the_home(tmp_path: Path) -> None:
    for folder in ("home/me", "repo/.git", "repo/pkg", "work"):
        (tmp_path / folder).mkdir(parents=True)
    found = enclosure.protected(
        str(tmp_path / "repo" / "pkg" / "train.py"),
        str(tmp_path / "work"),
        {"HOME": str(tmp_path / "home/me")},
    )
    assert {Path(p).relative_to(tmp_path).as_posix() for p in found} == {"repo", "work", "home/me"}


EITHER = pytest.mark.parametrize(
    "isolation",
    [
        "redirect",
        pytest.param("overlay", marks=pytest.mark.skipif(not HAS_OVERLAY, reason="nobody may mount here")),
    ],
)


@EITHER
def test_what_a_script_writes_into_its_project_is_reported(
    runner: Any, assignment: Any, files: Path, isolation: str
) -> None:
    """In an overlay it is kept off the user's files; a program that Python does not see may get past a redirect."""
    before = tree(files)
    past = "import subprocess; subprocess.run('for n in a b c d; do echo x > by_shell_$n; done', shell=True, check=True)\n"
    (ended,) = runner(isolation=isolation).run(
        assignment("Path('ckpt.pt').write_text('w')\n" + past + "good()")
    )
    assert isinstance(ended.outcome, Measurement), ended.outcome
    if isolation == "overlay" and not ended.notes:
        pytest.skip("the layers are in memory here")
    (message,) = ended.notes
    if isolation == "overlay":
        assert message.startswith("the script writes into its project (")
        assert "such writes are redirected" in message
        assert {p: s for p, s in tree(files).items() if "train.py" not in p} == {
            p: s for p, s in before.items() if "train.py" not in p
        }
    else:
        assert message.startswith("while a trial ran, by it or by others, files of yours changed: ")
    assert "by_shell_a, by_shell_b, by_shell_c and " in message


@pytest.mark.skipif(not HAS_OVERLAY, reason="this machine lets nobody mount an overlay")
def test_what_a_script_writes_outside_its_project_is_reported(
    runner: Any, assignment: Any, files: Path, tmp_path: Path
) -> None:
    """It reaches nobody's files; whoever counts on it (a results folder, a database) is to know that."""
    far = tmp_path / "elsewhere"
    far.mkdir()
    writes = f"Path({str(far)!r}, 'w').write_text('1'); Path.home().joinpath('theirs.txt').write_text('2')\n"
    passing = (
        "Path.home().joinpath('.cache').mkdir(); Path.home().joinpath('.cache', 'hub').write_text('3')\n"
    )
    before = tree(files.parent)
    inside = "Path('ckpt.pt').write_text('w')\n"
    (ended,) = runner(isolation="overlay").run(assignment(inside + writes + passing + "good()"))
    if not ended.notes:
        pytest.skip("the layers are in memory here")
    _, message = ended.notes
    assert message.startswith("the script writes outside its project (")
    assert str(far / "w") in message
    assert str(files.parent / "theirs.txt") in message
    assert "hub" not in message
    assert list(far.iterdir()) == []
    assert {p: s for p, s in tree(files.parent).items() if "train.py" not in p} == {
        p: s for p, s in before.items() if "train.py" not in p
    }


@EITHER
def test_a_name_that_is_no_text_is_reported_so_that_it_can_be_written_down(
    runner: Any, assignment: Any, files: Path, isolation: str
) -> None:
    """A dataset that was packed where names are in another encoding."""
    make = "import subprocess; subprocess.run(['touch', b'caf\\xe9.jpg'], check=True)\n"
    (ended,) = runner(isolation=isolation).run(assignment(make + "good()"))
    if isolation == "overlay" and not ended.notes:
        pytest.skip("the layers are in memory here")
    assert r"caf\udce9.jpg" in "".join(ended.notes)


@EITHER
def test_a_script_that_writes_nothing_there_gets_no_note(
    runner: Any, assignment: Any, files: Path, isolation: str
) -> None:
    text = "Path(os.environ['TMPDIR'], 'x').write_text('x'); open('config.json').read(); good()"
    (ended,) = runner(isolation=isolation).run(assignment(text))
    assert ended.notes == ()


def test_an_overlays_layer_reports_what_lies_in_which_folder(tmp_path: Path) -> None:
    layer = tmp_path / "upper" / "2"
    for name in (
        "home/me/project/runs/a.csv",
        "home/me/project/.git/x",
        "home/me/else/b",
        "home/me/projects/c",
    ):
        (layer / name).parent.mkdir(parents=True, exist_ok=True)
        (layer / name).touch()
    (tmp_path / "upper" / "2.of").write_text("/")
    assert enclosure.kept_off(tmp_path, ["/home/me/project"]) == ["/home/me/project/runs/a.csv"]
    # A study of ours may lie in the project; what is written there is no file of the script's.
    assert enclosure.kept_off(tmp_path, ["/home/me/project"], "/home/me/project/runs") == []
    assert enclosure.kept_off(tmp_path, ["/home/me/project"], "/home/me/project/run") != []
    (tmp_path / "upper" / "2.of").write_text("/mnt")
    assert enclosure.kept_off(tmp_path, ["/home/me/project"]) == []
    assert enclosure.kept_off(tmp_path, ["/mnt/home/me/else"]) == ["/mnt/home/me/else/b"]


def test_what_is_reported_elsewhere_leaves_out_the_project_and_what_does_not_last(tmp_path: Path) -> None:
    layer = tmp_path / "upper" / "1"
    for name in ("home/me/project/a", "home/me/b", "home/me/.cache/c", "tmp/d", "scratch/e", "srv/f"):
        (layer / name).parent.mkdir(parents=True, exist_ok=True)
        (layer / name).touch()
    (tmp_path / "upper" / "1.of").write_text("/")
    reported = enclosure.kept_off_elsewhere(tmp_path, ["/home/me/project"], ("/scratch",))
    assert reported == ["/home/me/b", "/srv/f"]
    # Where the project lies in such a folder itself, what is beside it is reported.
    reported = enclosure.kept_off_elsewhere(tmp_path, ["/tmp/project"], ("",))
    assert "/tmp/d" in reported


def test_in_place_of_a_folder_of_ours_a_link_is_removed_and_nothing_behind_it(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs" / "open"
    theirs.mkdir(parents=True)
    theirs.chmod(0o755)
    (tmp_path / "ours").symlink_to(tmp_path / "theirs")
    enclosure.remove(tmp_path / "ours")
    assert not (tmp_path / "ours").is_symlink()
    assert theirs.stat().st_mode & 0o777 == 0o755


def test_a_probe_that_nothing_ends_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As below a file server that has gone; in its place a process that never seems to end."""
    waits: list[float] = []

    class Stuck:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def kill(self) -> None:
            waits.append(-1.0)

        def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
            assert timeout is not None, "a wait without a bound"
            waits.append(timeout)
            raise subprocess.TimeoutExpired("probe", timeout)

    monkeypatch.setattr(enclosure.subprocess, "Popen", Stuck)
    assert enclosure.examined.__wrapped__(str(tmp_path)) == enclosure.Isolation("redirect")
    assert waits == [enclosure.PROBE_S, -1.0, enclosure.KILLED_S]
    assert list(tmp_path.iterdir()) == []


def test_the_next_probe_removes_what_a_killed_one_has_left(tmp_path: Path) -> None:
    old, new, linked = (tmp_path / f"{enclosure.PROBE_FOLDER}{name}" for name in ("old", "new", "linked"))
    others = tmp_path / "others"
    for folder in (old / "trial", new, others):
        folder.mkdir(parents=True)
    linked.symlink_to(others)
    for path in (old, linked):
        os.utime(path, (0, 0), follow_symlinks=False)
    enclosure.examined.__wrapped__(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [new.name, "others"]


def test_a_folder_of_another_account_is_left_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / f"{enclosure.PROBE_FOLDER}old"
    old.mkdir()
    os.utime(old, (0, 0))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    enclosure._remove_abandoned(tmp_path)
    assert old.is_dir()
