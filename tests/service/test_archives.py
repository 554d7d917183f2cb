"""Archives of code and studies: regular files below one folder, and nothing else, on every Python."""

import io
import tarfile

import pytest

from autotune.service.archives import extract


def archive_of(*entries):
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as made:
        for name, kind, link in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, link
            entry.size = 4 if kind == tarfile.REGTYPE else 0
            made.addfile(entry, io.BytesIO(b"text"))
    raw.seek(0)
    return tarfile.open(fileobj=raw)


@pytest.fixture(params=["with a filter", "without"], autouse=True)
def python(request, monkeypatch):
    """Python 3.11.2, which Debian 12 has, knows no filter; on such a Python both cases are the same."""
    if request.param == "without":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        monkeypatch.setattr(
            tarfile.TarFile, "extraction_filter", staticmethod(lambda member, _: member), False
        )


def test_regular_files_are_extracted(tmp_path):
    extract(archive_of(("sub", tarfile.DIRTYPE, ""), ("sub/train.py", tarfile.REGTYPE, "")), tmp_path)
    assert (tmp_path / "sub" / "train.py").read_text() == "text"


@pytest.mark.parametrize(
    "bad",
    [
        ("../out", tarfile.REGTYPE, ""),
        ("/tmp/out", tarfile.REGTYPE, ""),
        ("link", tarfile.SYMTYPE, "/etc/passwd"),
        ("hard", tarfile.LNKTYPE, "/etc/passwd"),
        ("device", tarfile.CHRTYPE, ""),
        ("pipe", tarfile.FIFOTYPE, ""),
    ],
)
def test_anything_else_is_refused_before_a_file_is_written(tmp_path, bad):
    with pytest.raises(tarfile.TarError, match="is no regular file below the archive's root"):
        extract(archive_of(("train.py", tarfile.REGTYPE, ""), bad), tmp_path)
    assert list(tmp_path.iterdir()) == []
