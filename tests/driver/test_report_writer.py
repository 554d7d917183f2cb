"""The report beside the journal."""

import logging
import os
import stat

import pages
import pytest
from study_fakes import good_answer, study

import autotune.report.html.page as page
from autotune.driver.sinks.report_writer import write_page, write_report


def test_a_report_is_written_whole_and_again(tmp_path):
    for label in ("first", "second"):
        reported = study()
        path = write_report(tmp_path, reported, good_answer())
        assert path == tmp_path / "report.html", label
        assert pages.data(path.read_text())["picks"]["best"]["speedup"]["value"] == 2.0
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_a_study_without_an_answer_has_a_report_too(tmp_path):
    assert write_report(tmp_path, study(trials=(), stopped="no_baseline"), None) is not None


def test_a_page_that_fails_is_a_warning_and_no_more(tmp_path, monkeypatch, caplog):
    def broken(*_args, **_more):
        raise ValueError("no page today")

    monkeypatch.setattr(page, "report_html", broken)
    with caplog.at_level(logging.WARNING):
        assert write_report(tmp_path, study(), good_answer()) is None
    assert "autotune report train-1121-1002" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_page(tmp_path / "taken", "text")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_a_report_is_private_whatever_the_umask_and_stays_shared_where_its_user_shared_it(tmp_path):
    path = tmp_path / "report.html"
    for umask in (0o000, 0o077):
        before = os.umask(umask)
        try:
            write_page(path, "text")
        finally:
            os.umask(before)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    write_page(path, "again")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("again", 0o644)
