# ruff: noqa: E501 (scripts as lines)
"""Under every isolation files are renamed, linked, locked and shared as without one, or it is not used."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from account import Account

from autotune.launch.guard import overlay_probe
from autotune.launch.workspace import isolation, isolation_failures
from autotune.model.measurement import Measurement
from autotune.model.trial import Failure, FailureKind

HAS_OVERLAY = isolation.available() == "overlay"
overlaid = pytest.mark.skipif(not HAS_OVERLAY, reason="this machine lets nobody mount an overlay")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="files are given to other users")
with_root_on_disk = pytest.mark.skipif(
    " / overlay " in f" {Path('/proc/mounts').read_text()}".replace("\n", "\n "),
    reason="in a container the layers are in memory, and such a script runs in redirect mode",
)

MOVES = """
import tempfile
os.rename('ckpt', 'ckpt.prev'); assert os.listdir('ckpt.prev') == ['step1'] and not os.path.exists('ckpt')
os.mkdir('ckpt'); Path('ckpt/step2').write_text('2')
"""
ROTATES = MOVES + "good()"
SAVES = """
import tempfile
fd, name = tempfile.mkstemp(); os.write(fd, b'new'); os.close(fd)
os.replace(name, 'weights.pt'); assert Path('weights.pt').read_text() == 'new'
folder = tempfile.mkdtemp(); Path(folder, 'x').write_text('x'); os.rename(folder, 'saved')
assert Path('saved/x').read_text() == 'x'
"""
ACROSS = """
far = Path({far!r})
os.link(far / 'big', 'linked'); assert os.stat('linked').st_ino == os.stat(far / 'big').st_ino
os.rename(far / 'big', 'moved'); os.rename('ckpt.prev', far / 'ckpt'); assert os.listdir(far / 'ckpt') == ['step1']
"""
KERNEL = """
import fcntl, mmap, socket
Path('pair1').open('a').write('more'); assert Path('pair2').read_text() == 'pairmore'
places = ['.', 'ckpt', 'weights.pt', 'untouched', tempfile.gettempdir(), far]
assert len({{os.stat(place).st_dev for place in places}}) == 1, [os.stat(place).st_dev for place in places]
before = os.stat('untouched').st_ino; Path('untouched').open('a').write('x'); assert os.stat('untouched').st_ino == before
fd = os.open('.', os.O_TMPFILE | os.O_RDWR); os.write(fd, b'unnamed')
os.link(f'/proc/self/fd/{{fd}}', 'named', src_dir_fd=0, follow_symlinks=True); assert Path('named').read_bytes() == b'unnamed'
server, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
server.bind(tempfile.gettempdir() + '/s'); server.listen(1); client.connect(tempfile.gettempdir() + '/s')
with open('shared', 'r+b') as file, mmap.mmap(file.fileno(), 0) as view: view[:2] = b'ab'; view.flush()
assert Path('shared').read_bytes()[:2] == b'ab'
one, two = open('shared'), open('shared'); fcntl.flock(one, fcntl.LOCK_EX)
try: fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB); raise AssertionError('locked twice')
except BlockingIOError: pass
os.setxattr('shared', 'user.of', b'me'); assert os.getxattr('shared', 'user.of') == b'me'
os.chmod('ckpt', 0o2775); assert os.stat('ckpt').st_mode & 0o7777 == 0o2775
os.mkfifo('pipe'); os.symlink('shared', 'latest'); assert Path('latest').read_bytes()[:2] == b'ab'
"""


@pytest.fixture
def far(user: Path) -> Path:
    """Another folder of the same disk; the project is filled as well."""
    fill(user)
    folder = user.parent.parent / "far"
    folder.mkdir()
    (folder / "big").write_text("big")
    return folder


def fill(project: Path) -> None:
    (project / "ckpt").mkdir()
    (project / "ckpt" / "step1").write_text("1")
    for name in ("weights.pt", "untouched", "shared"):
        (project / name).write_text(f"old {name}")
    (project / "pair1").write_text("pair")
    os.link(project / "pair1", project / "pair2")


def listed(project: Path) -> dict[str, object]:
    found = {}
    for path in sorted(project.rglob("*")):
        status = path.lstat()
        found[str(path)] = (
            status.st_mode,
            status.st_ino,
            status.st_nlink,
            path.read_bytes() if path.is_file() else b"",
        )
    return found


@overlaid
@as_root
@with_root_on_disk
def test_an_overlay_that_root_mounts_changes_no_file_operation(
    runner: Any, assignment: Any, user: Path, far: Path
) -> None:
    text = MOVES + SAVES + ACROSS.format(far=str(far)) + KERNEL.format() + "good()"
    made, before = assignment(text), listed(user)
    (ended,) = runner(isolation="overlay").run(made)
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert not any("redirect mode" in note for note in ended.notes)
    before.pop(str(user / "train.py"), None)
    after = listed(user)
    after.pop(str(user / "train.py"))
    assert after == before
    assert (far / "big").read_text() == "big"


def test_redirection_renames_as_without_it(runner: Any, assignment: Any, user: Path, far: Path) -> None:
    before = listed(user)
    (ended,) = runner(isolation="redirect").run(assignment(MOVES + SAVES + "good()"))
    assert isinstance(ended.outcome, Measurement), ended.outcome
    after = listed(user)
    after.pop(str(user / "train.py"))
    assert after == before


@overlaid
@as_root
@with_root_on_disk
def test_what_a_script_saves_can_be_moved_into_a_folder_that_its_option_names(
    runner: Any, assignment: Any, user: Path, far: Path
) -> None:
    """That folder is ours in a trial, and on the same disk for the script."""
    text = SAVES + "os.replace('saved/x', os.path.join(sys.argv[-1].split('=')[-1], 'x')); good()"
    made = assignment(text, argv=("--output", "runs"), output_args=("--output",))
    (ended,) = runner(isolation="overlay").run(made)
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert not any("redirect mode" in note for note in ended.notes)


# An ordinary user ----------------------------------------------------------------------------


@pytest.fixture
def project(member: Account) -> Path:
    """A project of the ordinary user, in his home."""
    folder = Path(tempfile.mkdtemp(prefix="project-", dir=member.home))
    fill(folder)
    member.give(folder)
    return folder


def trials(member: Account, stub: str, assignment: Any, project: Path, *texts: str) -> dict[str, Any]:
    made = []
    for number, text in enumerate(texts):
        script = project / f"train{number}.py"
        script.write_text(text)
        one = assignment(text, uid=f"t{number:04d}-a1-{os.getpid() % 2**24:06x}")
        launch = replace(
            one.launch, script=str(script), cwd=str(project), command=(member.python, str(script))
        )
        made.append(replace(one, launch=launch))
    found = member.run_trials(stub, *made)
    if found["mode"] != "overlay" and not found["why"]:
        pytest.skip("this machine lets no ordinary user mount an overlay")
    return found


def test_an_ordinary_users_temporary_files_can_be_moved_into_the_project(
    member: Account, stub: str, assignment: Any, project: Path
) -> None:
    found = trials(member, stub, assignment, project, SAVES + "good()")
    (ended,) = found["ends"]
    assert (found["mode"], ended["kind"]) == ("overlay", "Measurement"), found
    assert not any("redirect mode" in note for note in ended["notes"])
    assert (project / "weights.pt").read_text() == "old weights.pt"


def test_a_folder_that_cannot_be_renamed_under_the_overlay_is_the_overlays_fault(
    member: Account, stub: str, assignment: Any, project: Path
) -> None:
    """A user namespace allows no renames of folders that were there before: EXDEV."""
    found = trials(member, stub, assignment, project, ROTATES, "assert plan.shadow_dir\n" + ROTATES)
    first, second = found["ends"]
    assert (found["mode"], first["kind"], second["kind"]) == ("overlay", "Measurement", "Measurement"), found
    assert "the script is not at fault" in first["notes"][0]
    assert "Invalid cross-device link" in first["notes"][0]
    assert "redirect mode" in first["notes"][0]
    assert [path.name for path in (project / "ckpt").iterdir()] == ["step1"]


@pytest.mark.parametrize("kind", ["file", "folder", "below"])
def test_a_project_that_a_group_owns_is_kept_by_redirection_from_the_start(
    member: Account, stub: str, assignment: Any, project: Path, kind: str
) -> None:
    """An overlay in a user namespace cannot copy what belongs to another group: EOVERFLOW."""
    group = project / "group"
    (group / "deep").mkdir(parents=True)
    (group / "log.txt").write_text("old")
    member.give(group)
    place = {"file": group / "log.txt", "folder": group, "below": group}[kind]
    os.chown(place, member.uid if kind != "below" else 0, member.second)
    place.chmod({"file": 0o664, "folder": 0o2775, "below": 0o755}[kind])
    writes = {
        "file": "open('group/log.txt', 'a').write('more')",
        "folder": "Path('group/new').write_text('new')",
        "below": "Path('group/deep/new').write_text('new')",
    }[kind]
    found = trials(member, stub, assignment, project, writes + "\ngood()")
    (ended,) = found["ends"]
    assert (found["mode"], ended["kind"]) == ("redirect", "Measurement"), found
    assert f"{member.name}lab" in found["why"] or kind == "below"
    assert str(project / "group") in found["note"]
    assert (group / "log.txt").read_text() == "old"
    assert not (group / "new").exists()


def test_what_the_user_could_not_write_to_alone_needs_no_redirection(
    member: Account, stub: str, assignment: Any, project: Path
) -> None:
    """A dataset of somebody else's, which is only read."""
    (project / "data").mkdir()
    (project / "data" / "x").write_text("theirs")
    os.chown(project / "data", 0, 0)
    found = trials(member, stub, assignment, project, "assert Path('data/x').read_text() == 'theirs'; good()")
    assert (found["mode"], found["ends"][0]["kind"]) == ("overlay", "Measurement"), found


@as_root
def test_of_every_owner_and_group_in_a_tree_one_path_is_tried(tmp_path: Path) -> None:
    for name, uid, gid in (("a", 0, 0), ("b", 0, 0), ("c", 1, 2), ("d", 3, 2)):
        (tmp_path / name).write_text("")
        os.chown(tmp_path / name, uid, gid)
    (tmp_path / "theirs" / "inner").mkdir(parents=True)
    os.chown(tmp_path / "theirs", 5, 5)
    (tmp_path / ".git").mkdir()
    os.chown(tmp_path / ".git", 9, 9)
    found = overlay_probe.samples([str(tmp_path)])
    assert {(s.uid, s.gid, s.is_folder) for s in found} == {
        *((0, 0, True), (0, 0, False), (1, 2, False), (3, 2, False), (5, 5, True)),
    }
    # One more of a kind that is known: what lies above it is another's.
    assert str(tmp_path / "theirs" / "inner") in {s.path for s in found}
    assert len(found) == 6


# Run again without the overlay ---------------------------------------------------------------

FAILS = "if not plan.shadow_dir: raise OSError({number}, os.strerror({number}), 'x')\n"


@overlaid
@pytest.mark.parametrize("number", isolation_failures.ERRORS)
def test_what_fails_under_the_overlay_alone_is_not_the_scripts_fault(
    runner: Any, assignment: Any, tmp_path: Path, number: int
) -> None:
    launcher = runner(isolation="overlay")
    (ended,) = launcher.run(assignment(FAILS.format(number=number) + "good()"))
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert "the script is not at fault" in ended.notes[0]
    assert f"[Errno {number}]" in ended.notes[0]
    # Other processes of the search know it as well.
    assert isolation_failures.is_noted(tmp_path / "study")
    (ended,) = runner(isolation="overlay").run(
        assignment("assert plan.shadow_dir; good()", uid="t0001-a1-000000")
    )
    assert isinstance(ended.outcome, Measurement), ended.outcome
    assert ended.notes == ()


@overlaid
def test_what_fails_without_the_overlay_as_well_is_the_scripts_and_is_tried_once(
    runner: Any, assignment: Any, tmp_path: Path
) -> None:
    launcher = runner(isolation="overlay")
    (ended,) = launcher.run(assignment("raise OSError(18, 'Invalid cross-device link')"))
    assert isinstance(ended.outcome, Failure)
    assert isolation_failures.BOTH_MODES not in ended.outcome.evidence
    assert not isolation_failures.is_noted(tmp_path / "study")
    # This one would pass in redirect mode.
    (ended,) = launcher.run(assignment(FAILS.format(number=18) + "good()", uid="t0001-a1-000000"))
    assert isinstance(ended.outcome, Failure), "the same error is not doubted again"


@overlaid
def test_a_script_that_fails_otherwise_without_the_overlay_is_not_blamed(
    runner: Any, assignment: Any
) -> None:
    text = FAILS.format(number=18) + "raise RuntimeError('cannot read its own file')"
    (ended,) = runner(isolation="overlay").run(assignment(text))
    assert isinstance(ended.outcome, Failure)
    assert "cannot read its own file" in ended.outcome.message
    assert "[Errno 18]" in str(ended.outcome.evidence[isolation_failures.BOTH_MODES])


@overlaid
def test_another_error_is_the_scripts_own(runner: Any, assignment: Any) -> None:
    text = "if not plan.shadow_dir: raise FileNotFoundError(2, 'No such file', 'data.csv')\ngood()"
    (ended,) = runner(isolation="overlay").run(assignment(text))
    assert isinstance(ended.outcome, Failure)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("OSError: [Errno 18] Invalid cross-device link: 'a' -> 'b'", "EXDEV"),
        ("OSError: [Errno 75] Value too large for defined data type: 'x'", "EOVERFLOW"),
        ("filesystem error: cannot rename: Invalid cross-device link [a] [b]", "EXDEV"),
        ("safetensors_rust.SafetensorError: Io(Os { code: 75 }) (os error 75)", "EOVERFLOW"),
        ("PermissionError: [Errno 1] Operation not permitted: 'x'", "EPERM"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'x'", ""),
        ("ValueError: Invalid argument", ""),
        ("[Errno 180] nothing", ""),
    ],
)
def test_errors_that_an_overlay_may_cause_are_known_by_their_text(text: str, error: str) -> None:
    for evidence in ({"traceback": text}, {"log_tail": text}):
        made = Failure(kind=FailureKind.CRASH_EXIT, message="exit code 1", evidence={**evidence})
        assert isolation_failures.suspected([made]) == error
    other = Failure(kind=FailureKind.OOM_CUDA, message=text, evidence={"log_tail": text})
    assert isolation_failures.suspected([other]) == ""


def test_what_was_printed_before_an_exception_of_another_kind_is_no_suspicion() -> None:
    evidence: dict[str, str | int | float] = {
        "traceback": "RuntimeError: no model",
        "log_tail": "mbind: Operation not permitted",
    }
    made = Failure(kind=FailureKind.CRASH_EXIT, message="RuntimeError: no model", evidence=evidence)
    assert isolation_failures.suspected([made]) == ""
