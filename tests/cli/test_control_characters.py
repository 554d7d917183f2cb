"""No text of a journal, a script or a command line commands the terminal, the report, or a reader of JSON."""

import io
import json
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hostile import CONTROLS

from autotune.driver.sinks.sync import _sanitized
from autotune.model.config import Config
from autotune.model.trial import Stage
from autotune.report.terminal.async_writer import AsyncWriter, VisibleStream, raw, visible_streams
from autotune.report.terminal.live_view import Line, Screen, fitted
from autotune.store.journal import Journal
from autotune.store.paths import study_dir

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
import made_studies as made


def unsafe(text):
    return [c for c in text if not c.isprintable() and c not in "\n\t" and unicodedata.category(c) != "Zs"]


@pytest.fixture
def study(script):
    """A search whose every text is hostile."""
    failure = replace(made.OOM, message=f"m {CONTROLS}", evidence={"log_tail": f"a {CONTROLS}\nb {CONTROLS}"})
    outcomes = (*made.OUTCOMES, (Stage.REFINE, Config({"mine": f"v{CONTROLS}"}), failure))
    given = {
        "label": f"l{CONTROLS}",
        "script": f"/w/tr{CONTROLS}.py",
        "args": ("--name", CONTROLS),
        "cwd": f"/w{CONTROLS}",
        "out": "",
    }
    with Journal.create(study_dir(made.STUDY_ID), ballast_bytes=0, environ={}) as journal:
        for event in made.events(outcomes=outcomes, **given):
            journal.append(event.kind, event.uid, event.data)
    return made.STUDY_ID


@pytest.mark.parametrize(
    "words",
    [
        ["list"],
        ["list", "--json"],
        ["show"],
        ["show", "--trials"],
        ["show", "--md"],
        ["show", "--json"],
        ["report", "--html", "--out", "-"],
        ["report", "--md"],
        ["report", "--json"],
        ["compare", made.STUDY_ID, made.STUDY_ID],
        ["show", CONTROLS],
        ["apply", f"{CONTROLS}.yaml"],
        ["search", "--budget", "1m", "--script", f"{CONTROLS}.py"],
        ["search", f"--{CONTROLS}"],
    ],
    ids=lambda words: " ".join(words).encode("ascii", "replace").decode(),
)
def test_nothing_that_is_shown_holds_a_control_character(cli, study, words):
    code, out, err = cli(*words)
    assert unsafe(out + err) == []
    assert code in (0, 2, 5)
    assert "owned" in out + err
    if "--json" in words:
        json.loads(out)


def test_a_report_in_a_file_holds_none(cli, study):
    assert cli("report", "--out", "page.html")[0] == 0
    text = Path("page.html").read_text(encoding="utf-8")
    assert unsafe(text) == []
    assert "\\u202e" in text


def test_mlflow_is_sent_none():
    assert unsafe(_sanitized(f"a {CONTROLS} b")) == []


def test_whoever_writes_to_the_streams_of_a_verb_writes_visibly(capsys):
    with visible_streams():
        print(CONTROLS)
        sys.stderr.writelines([CONTROLS, "\n"])
        assert raw(sys.stdout) is not sys.stdout
        with visible_streams():
            print(CONTROLS, file=sys.stderr)
    seen = capsys.readouterr()
    assert unsafe(seen.out + seen.err) == []
    assert seen.err.count("\\u202e") == 2
    assert not isinstance(sys.stdout, VisibleStream)


def test_an_outlet_escapes_what_it_writes_late():
    stream = io.StringIO()
    outlet = AsyncWriter.of(VisibleStream(stream))
    outlet.put(CONTROLS)
    outlet.last(CONTROLS)
    assert unsafe(stream.getvalue()) == []


def test_the_live_view_draws_with_its_own_sequences_and_shows_none_of_others():
    _label, text, _style = fitted(Line("best", f"a{CONTROLS}\nb"), 200)
    assert unsafe(text) == []
    assert "\n" not in text
    stream = io.StringIO()
    screen = Screen(VisibleStream(stream), lambda: [Line("now", CONTROLS)])
    screen.say(CONTROLS)
    screen._draw([Line("now", CONTROLS)])
    drawn = stream.getvalue()
    assert "\x1b[K" in drawn
    for own in ("\x1b[K", "\x1b[J", "\x1b[2m", "\x1b[0m", "\r"):
        drawn = drawn.replace(own, "")
    assert unsafe(drawn) == []
