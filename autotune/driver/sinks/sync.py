"""Transfer of the outbox to MLflow in a separate thread; delays no trial and never raises."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from autotune.driver.profiles import profile_files
from autotune.driver.rebuild_space import space_of
from autotune.errors import AutotuneError, StoreError, UsageError
from autotune.report.mlflow.recorder import MlflowSink, Refused, absolute_uri
from autotune.shortage import first_line
from autotune.store.fold import fold
from autotune.store.journal import Journal
from autotune.store.outbox import MLFLOW, OutboxRow
from autotune.store.paths import default_tracking_uri, own_store
from autotune.text.printable import visible
from autotune.text.redact import is_incomplete, redact, restore

if TYPE_CHECKING:
    from autotune.answer.answer import Answer
    from autotune.model.study import Study

log = logging.getLogger(__name__)

IDLE_S = 1.0
"""Interval between checks of an empty outbox."""

OPENING_S = 10.0
"""A store that is not open after this time is waiting for a network, not using the CPU.

Importing MLflow and opening a new local store take 2 to 5 s.
"""

BACK_OFF_S = 1.0
LONGEST_BACK_OFF_S = 60.0
_BATCH = 50


class Sink(Protocol):
    """Receiver of rows."""

    def open(self) -> None:
        """Prepare for sending; may be slow."""

    def send(self, op: str, payload: Mapping[str, Any], study: Study, answer: Answer | None = None) -> None:
        """Perform one operation; repeats are harmless."""

    def links(self) -> dict[str, str]:
        """Return name -> address of the result."""
        ...


SinkFactory = Callable[[], Sink]


class Syncer:
    """Background thread between a journal's outbox and MLflow.

    An unreachable store is retried after 1, 2, 4 ... 60 s, reported once, and otherwise ignored; rows stay in
    the journal. A row that MLflow refuses is set aside for this life, so that it does not block later ones.

    Args:
        journal: Open for writing; this thread reads and acknowledges its rows.
        study: Returns the study so far.
        sink: Creates the sink; called in the thread, since it imports MLflow.
        tracking_uri: Store if no sink is given; empty for the default one.
        experiment: Likewise; empty for ``autotune/<script stem>``.
        home: Likewise; the study's directory, which contains profiles.
        sends: Sink of the outbox whose rows are sent.
    """

    def __init__(
        self,
        journal: Journal,
        study: Callable[[], Study],
        sink: SinkFactory | None = None,
        *,
        tracking_uri: str = "",
        experiment: str = "",
        home: Path | None = None,
        sends: str = MLFLOW,
        idle_s: float = IDLE_S,
        back_off_s: float = BACK_OFF_S,
    ) -> None:
        self._journal = journal
        self._study = study
        self._factory = sink or (lambda: mlflow_sink(tracking_uri, experiment, home=home))
        self._sends = sends
        self._idle_s = idle_s
        self._back_off_s = back_off_s
        self._sink: Sink | None = None
        self._thread: threading.Thread | None = None
        self._state = threading.Condition()
        self._began_s = 0.0
        self._is_open = False
        self._failures = 0
        self._closing = False
        self._hurried = False
        self._wanted = 0
        self._begun = 0
        self._idle_for = -1
        self._failed_for = -1
        self._aside: set[int] = set()
        self._warned = False

    def start(self) -> None:
        """Start sending; a second call does nothing."""
        if self._thread is None:
            self._began_s = time.monotonic()
            self._thread = threading.Thread(target=self._run, name="autotune-sync", daemon=True)
            self._thread.start()

    @property
    def is_opening(self) -> bool:
        """Whether the store is opened for the first time, which takes CPU time; False after `OPENING_S`."""
        return (
            self._thread is not None
            and not (self._is_open or self._failures)
            and time.monotonic() - self._began_s < OPENING_S
        )

    def warm_up(self, timeout_s: float) -> bool:
        """Wait until the store was opened, so that this work does not disturb a measurement.

        Ends early after a failure.

        Args:
            timeout_s: Longest wait.

        Returns:
            Whether the store is open.
        """
        self.start()
        with self._state:
            self._state.wait_for(lambda: self._is_open or self._failures > 0, timeout=max(0.0, timeout_s))
            return self._is_open

    def flush(self, deadline_s: float) -> int:
        """Send the remaining rows and end the thread.

        Args:
            deadline_s: Time limit. An unreachable store ends it sooner.

        Returns:
            Number of unsent rows; they stay in the journal for `sync_study`.
        """
        self.start()
        end_s = time.monotonic() + max(0.0, deadline_s)
        with self._state:
            # Only a round that began after this moment includes every row written before it.
            self._wanted += 1
            mine = self._wanted
            self._state.notify_all()
            # One new round that fails is enough, as the budget is over.
            self._state.wait_for(
                lambda: self._hurried or max(self._idle_for, self._failed_for) >= mine,
                timeout=max(0.0, end_s - time.monotonic()),
            )
            self._closing = True
            self._state.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=max(0.0, min(0.2, end_s - time.monotonic())))
        with contextlib.suppress(AutotuneError):
            return self._journal.unsent(self._sends)
        return 0

    def hurry(self) -> None:
        """End a waiting `flush`, at the user's request. Also for signal handlers."""
        with self._state:
            self._hurried = True
            self._state.notify_all()

    def links(self) -> dict[str, str]:
        """Return name -> address or command, best first; empty if nothing was sent."""
        return self._sink.links() if self._sink is not None and self._is_open else {}

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            with self._state:
                self._begun = self._wanted
            try:
                sent_all = self._step()
            except Exception as error:  # noqa: BLE001 (nothing here is a reason to end a search)
                self._failed(error)
                continue
            with self._state:
                self._failures = 0
                if sent_all:
                    self._idle_for = self._begun
                    self._state.notify_all()
                    self._wait(self._idle_s)

    def _step(self) -> bool:
        """Send one batch; return True if no row was left."""
        if self._sink is None:
            self._sink = self._factory()
        self._sink.open()
        if not self._is_open:
            with self._state:
                self._is_open = True
                self._state.notify_all()
        # Rows set aside stay pending, so more are requested.
        rows = [
            r
            for r in self._journal.pending(self._sends, _BATCH + len(self._aside))
            if r.seq not in self._aside
        ]
        for row in rows:
            if self._closing:
                return False
            self._send(row)
        return not rows

    def _send(self, row: OutboxRow) -> None:
        if self._sink is None:
            return
        study = self._study()
        answer = _answer(study) if row.op == "study_ended" else None
        payload = {**row.payload, "wall_s": row.wall_s, "seq": row.seq}
        if row.op == "study_ended":
            study = replace(study, stopped=str(row.payload.get("why", "")) or study.stopped)
            payload = {**payload, **_best_yaml(payload, self._journal.file.parent)}
        try:
            self._sink.send(row.op, payload, study, answer)
        except Refused as error:
            self._aside.add(row.seq)
            self._report_error(error)
            return
        self._journal.ack(row.seq)

    def _failed(self, error: Exception) -> None:
        self._report_error(error)
        with self._state:
            self._failures += 1
            self._failed_for = self._begun
            self._state.notify_all()
            self._wait(min(LONGEST_BACK_OFF_S, self._back_off_s * 2.0 ** min(self._failures - 1, 10)))

    def _wait(self, seconds: float) -> None:
        self._state.wait_for(lambda: self._closing or self._wanted > self._begun, timeout=seconds)

    def _report_error(self, error: Exception) -> None:
        if self._closing and isinstance(error, StoreError):
            return
        if self._warned:
            log.debug("still not sent", exc_info=error)
            return
        self._warned = True
        text = error.message if isinstance(error, AutotuneError) else first_line(error)
        log.warning(
            "%s. The search continues; %s sends the records later.",
            redact(text, free=True).rstrip("."),
            "`autotune sync`" if self._sends == MLFLOW else "it",
        )


def mlflow_sink(tracking_uri: str = "", experiment: str = "", *, home: Path | None = None) -> MlflowSink:
    """Return the sink for a store, the default one if none is named; it removes secrets.

    Args:
        tracking_uri: Address of the store.
        experiment: Its name there.
        home: The study's directory with profiles; None to send none.
    """
    uri = tracking_uri or default_tracking_uri()
    files = None if home is None else functools.partial(profile_files, folder=home)
    return MlflowSink(uri, experiment, own=own_store(uri), clean=_sanitized, files=files)


def _sanitized(text: str) -> str:
    """Return the text for other users: without secrets, control characters escaped."""
    return visible(redact(text))


def sync_study(
    path: Path,
    deadline_s: float = 60.0,
    *,
    tracking_uri: str = "",
    again: bool = False,
    sink: SinkFactory | None = None,
) -> int:
    """Send the unsent rows of a study.

    Args:
        path: The study's directory.
        deadline_s: Time limit.
        tracking_uri: In place of the study's own.
        again: Also send rows that were sent before.
        sink: Creates the sink; for tests.

    Returns:
        Number of rows still unsent.

    Raises:
        StudyLocked: The study is being searched; that search sends by itself.
        StoreError: Its journal cannot be read, or its tracking address contained a secret that this
            environment does not have.
    """
    with Journal.open(path, ballast_bytes=0) as journal:
        study = fold(journal.entries(), build=space_of)
        _refuse_verification(study)
        uri = address_of(study, tracking_uri)
        if again:
            journal.resend(MLFLOW)
        if not journal.unsent(MLFLOW):
            return 0
        made = sink or (lambda: mlflow_sink(uri, study.spec.experiment, home=path))
        syncer = Syncer(journal, lambda: study, made, idle_s=0.05)
        syncer.start()
        return syncer.flush(deadline_s)


def study_paths(path: Path, *, tracking_uri: str = "") -> tuple[str, dict[str, str]]:
    """Return the location of a study in MLflow.

    Args:
        path: The study's directory.
        tracking_uri: In place of the study's own.

    Returns:
        The tracking address, and name -> path below any server that serves it, best first.

    Raises:
        TrackerUnavailable: The store cannot be reached.
        StoreError: The journal cannot be read, or its tracking address contained a secret that this
            environment does not have.
    """
    with Journal.read(path / "journal.db") as journal:
        study = fold(journal.entries())
    _refuse_verification(study)
    made = mlflow_sink(address_of(study, tracking_uri), study.spec.experiment)
    return made.tracking_uri, made.find(study)


def address_of(study: Study, tracking_uri: str) -> str:
    """Return the address of the store that was named, else of the study's own."""
    uri = restore(tracking_uri or study.spec.tracking_uri)
    if is_incomplete(uri):
        message = f"the tracking address {uri} had a secret in it, which is not kept"
        raise StoreError(message, hint="Give the address again: --tracking-uri.")
    # A relative address on the command line refers to the present folder, the study's own to its start.
    return absolute_uri(uri, str(Path.cwd()) if tracking_uri else study.spec.cwd)


def _refuse_verification(study: Study) -> None:
    if study.spec.purpose:
        what = f"study {study.spec.label} is what `autotune {study.spec.purpose}` measured"
        message = f"{what}, which is not sent to MLflow"
        raise UsageError(message, hint=f"it is here: autotune show {study.spec.label}")


def _answer(study: Study) -> Answer | None:
    from autotune.answer.pick import answer

    if not any(trial.measurement for trial in study.baseline):
        return None
    return answer(study)


def _best_yaml(payload: Mapping[str, Any], study_dir: Path) -> dict[str, str]:
    if payload.get("best_yaml"):
        return {}
    try:
        given = str(payload.get("best_yaml_path") or study_dir / "best.yaml")
        return {"best_yaml": Path(given).read_text(encoding="utf-8")}
    except (OSError, ValueError):
        return {}
