"""What goes to the service, and what comes out of a bundle there."""

import gzip
import hashlib
import io
import subprocess
import tarfile

import pytest

from autotune.errors import UsageError
from autotune.service import bundles as module
from autotune.service.bundles import Bundles
from autotune.service.packing import pack, packing_list


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "train.py").write_text("import src\n")
    (root / "src" / "__init__.py").write_text("")
    (root / "data.bin").write_bytes(b"x" * 100)
    (root / ".env").write_text("TOKEN=abc\n")
    (root / ".gitignore").write_text("data.bin\n")
    return root


def git(root, *words):
    subprocess.run(
        ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b", *words],
        check=True,
        capture_output=True,
    )


def test_git_says_what_belongs_to_the_project(project):
    git(project, "init", "-q")
    git(project, "add", "train.py")
    git(project, "commit", "-qm", "x")
    found = packing_list(project)
    assert found.files == (".gitignore", "src/__init__.py", "train.py")
    assert found.refused == (".env",)
    assert (len(found.commit), found.is_dirty) == (40, True)
    assert packing_list(project, include=["data.bin"]).files == (
        ".gitignore",
        "data.bin",
        "src/__init__.py",
        "train.py",
    )
    assert packing_list(project, include=[".env"]).refused == ()
    assert packing_list(project, exclude=["src/*"]).files == (".gitignore", "train.py")


def test_without_git_everything_but_caches_and_secrets_goes(project):
    (project / "__pycache__").mkdir()
    (project / "__pycache__" / "x.pyc").write_text("")
    found = packing_list(project)
    assert found.files == (".gitignore", "data.bin", "src/__init__.py", "train.py")
    assert (found.commit, found.refused) == ("", (".env",))


def test_links_are_not_sent(project, tmp_path):
    (tmp_path / "secret").write_text("x")
    (project / "link").symlink_to(tmp_path / "secret")
    assert "link" not in packing_list(project).files


def test_a_project_that_is_too_large_is_refused_with_its_largest_files(project, monkeypatch):
    from autotune.service import packing

    monkeypatch.setattr(packing, "MOST_BYTES", 50)
    with pytest.raises(UsageError, match=r"(?s)too large to send.*data\.bin"):
        packing_list(project)


def test_equal_files_give_equal_bundles_and_come_out_as_they_were(project, tmp_path):
    data, sha256 = pack(packing_list(project))
    assert pack(packing_list(project)) == (data, sha256)
    stored = Bundles(tmp_path / "bundles")
    stored.put(sha256, data)
    stored.unpack(sha256, tmp_path / "out")
    stored.unpack(sha256, tmp_path / "out")
    assert (tmp_path / "out" / "train.py").read_text() == "import src\n"
    assert not (tmp_path / "out" / ".env").exists()


def archive(*entries):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as made:
        for entry, data in entries:
            entry.size = len(data)
            made.addfile(entry, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


def entry(name, kind=tarfile.REGTYPE, link=""):
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mtime = kind, link, 0
    return made


@pytest.mark.parametrize(
    "hostile",
    [
        archive((entry("../escape.py"), b"x")),
        archive((entry("/etc/escape.py"), b"x")),
        archive((entry("link", tarfile.SYMTYPE, "/etc/passwd"), b"")),
        archive((entry("hard", tarfile.LNKTYPE, "/etc/passwd"), b"")),
        archive((entry("device", tarfile.CHRTYPE), b"")),
        archive((entry("pipe", tarfile.FIFOTYPE), b"")),
        b"no archive at all",
        gzip.compress(b"x" * 1000, mtime=0)[:-5],
    ],
    ids=["leads up", "absolute", "link", "hard link", "device", "pipe", "junk", "cut off"],
)
def test_a_hostile_archive_is_refused_and_leaves_nothing(tmp_path, hostile):
    stored = Bundles(tmp_path / "bundles")
    sha256 = hashlib.sha256(hostile).hexdigest()
    with pytest.raises(UsageError):
        stored.put(sha256, hostile)
    assert list((tmp_path / "bundles").iterdir()) == []


def test_an_archive_that_unpacks_to_far_more_than_it_is_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_UNPACKED", 1000)
    bomb = archive((entry("zeros"), b"\0" * 5_000_000))
    with pytest.raises(UsageError, match="too many files or bytes"):
        Bundles(tmp_path / "bundles").put(hashlib.sha256(bomb).hexdigest(), bomb)


def test_a_name_that_is_no_digest_is_refused(tmp_path):
    with pytest.raises(UsageError):
        Bundles(tmp_path / "bundles").has("../../etc/passwd")
