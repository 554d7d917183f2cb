"""A trial under Nsight Systems: a stand-in for its command runs what it is given, and ends in every way."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.launch.guard import process_tree
from autotune.model.measurement import Measurement
from autotune.model.trial import Assignment, Failure, FailureKind
from autotune.protocol.plan import PRIVATE, PROFILE_NSYS

if TYPE_CHECKING:
    from autotune.launch.process import LocalRunner
    from autotune.model.trial import Outcome

pytestmark = pytest.mark.thorough

MINE = f"nsys-{os.getpid() % 2**24:06x}"

NSYS = """#!{python} -S
import os, subprocess, sys, time
words = sys.argv[1:]
assert words[0] == "profile", words
end = next(i for i, word in enumerate(words[1:], 1) if not word.startswith("-"))
options = dict(word.partition("=")[::2] for word in words[1:end])
how = os.environ["HOW"]
if how == "fails":
    sys.exit("The target application could not be launched")
if how == "never starts":
    time.sleep(300)
if how == "leaves a daemon":
    nothing = subprocess.DEVNULL
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(300)"], start_new_session=True,
                     stdin=nothing, stdout=nothing, stderr=nothing)
code = subprocess.call(words[end:])
if how == "writes nothing":
    sys.exit("No reports were generated")
with open(options["--output"] + ".nsys-rep", "w") as file:
    file.write(" ".join(words[:end]))
if how == "hangs":
    time.sleep(300)
sys.exit(code)
"""


@pytest.fixture
def nsys(tmp_path: Path) -> str:
    path = tmp_path / "nsight" / "nsys"
    path.parent.mkdir()
    path.write_text(NSYS.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


def report(tmp_path: Path) -> Path:
    return tmp_path / "study" / "trials" / f"t0000-{MINE}" / PROFILE_NSYS


@pytest.fixture
def traced(runner: Any, assignment: Any, nsys: str, user: Path) -> Any:
    """Runs a good trial under a command that ends in this way."""

    def run(
        how: str, *, text: str = "good()", probe: str = "nsys", secret: str = "", **fidelity: Any
    ) -> Outcome:
        env = {"PATH": str(user), "HOME": str(user.parent), "NSYS": nsys, "HOW": how}
        env |= {"MY_API_TOKEN": secret} if secret else {}
        given: Assignment = assignment(text, uid=f"t0000-{MINE}", env=env, probe=probe, **fidelity)
        made: LocalRunner = runner()
        (ended,) = made.run(given)
        assert process_tree.marked(given.uid) == [], "nothing is left behind"
        return ended.outcome

    return run


def test_the_report_is_kept_beside_the_trials_other_files(traced: Any, tmp_path: Path) -> None:
    assert isinstance(traced("as it should"), Measurement)
    message = report(tmp_path).read_text()
    assert "--trace=cuda,nvtx,osrt" in message
    assert "--capture-range=cudaProfilerApi" in message


@pytest.mark.parametrize("secret", ["", "CANARY-variable"])
def test_a_report_of_a_process_with_secrets_is_marked_to_stay_here(
    traced: Any, tmp_path: Path, secret: str
) -> None:
    """It holds the environment, packed: nobody can take anything out of it."""
    assert isinstance(traced("as it should", secret=secret), Measurement)
    kept = report(tmp_path)
    assert kept.exists()
    assert kept.with_name(kept.name + PRIVATE).exists() is bool(secret)


def test_without_a_device_no_range_is_waited_for(traced: Any, tmp_path: Path) -> None:
    assert isinstance(traced("as it should", probe="nsys_whole"), Measurement)
    assert "capture-range" not in report(tmp_path).read_text()


def test_a_trial_for_anything_else_runs_without_it(traced: Any, tmp_path: Path) -> None:
    assert isinstance(traced("fails", probe=""), Measurement)
    assert not report(tmp_path).exists()


def test_a_daemon_that_it_leaves_is_ended_and_the_report_kept(traced: Any, tmp_path: Path) -> None:
    assert isinstance(traced("leaves a daemon"), Measurement)
    assert report(tmp_path).is_file()


def test_where_it_fails_nothing_is_measured_and_its_words_are_reported(traced: Any) -> None:
    found = traced("fails")
    assert isinstance(found, Failure)
    assert "could not be launched" in str(found.evidence["log_tail"])


def test_a_run_that_left_no_report_is_worth_nothing(traced: Any) -> None:
    found = traced("writes nothing")
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.NO_METRIC
    assert found.message == "nsys left no report: No reports were generated"


def test_one_that_hangs_after_the_script_is_ended_and_its_report_is_not_trusted(
    traced: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.launch.nsys.NSYS_LINGER_S", 0.5)
    found = traced("hangs")
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.NO_METRIC
    assert "was not done" in found.message
    assert not report(tmp_path).exists()


def test_the_wall_limit_holds_for_one_that_never_starts_the_script(traced: Any) -> None:
    begun_s = time.monotonic()
    found = traced("never starts", deadline_s=1.0)
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.TIMEOUT_TOTAL
    assert time.monotonic() - begun_s < 60


def test_where_it_is_gone_the_trial_fails_and_says_so(traced: Any, nsys: str) -> None:
    Path(nsys).unlink()
    found = traced("as it should")
    assert isinstance(found, Failure)
    assert "nsys is not installed here" in found.message
