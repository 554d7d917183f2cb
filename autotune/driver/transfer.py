"""Which earlier studies on this disk tell a new one something; read once, at its start, within a few seconds.

What is found is journaled with the new study (`autotune.model.history_record`), and what of it counts is
decided
later and purely (`autotune.compare.transfer`). Nothing that goes wrong in here is worth a search: a study
that cannot be read, or tells nothing, is left out with a reason.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from autotune.compare.transfer import fingerprint, is_own
from autotune.driver.rebuild_space import space_of
from autotune.errors import AutotuneError
from autotune.model.history_record import ALL, OFF, Transfer
from autotune.search.history_export import lessons, unfit
from autotune.search.samplers.registry import PLANNER
from autotune.store.fold import fold
from autotune.store.journal import Journal, is_locked
from autotune.store.paths import JOURNAL_FILE, newest_study_dirs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from autotune.model.history_record import Earlier, Fingerprint
    from autotune.model.study import Study
    from autotune.store.journal import Entry

log = logging.getLogger(__name__)

MOST_READ: Final = 20
"""Studies that are opened, the newest ones."""
MOST_OWN, MOST_OTHERS = 3, 5
"""Studies of the same script, and of others, that are taken over."""
MOST_S, MOST_SHARE = 3.0, 0.02
"""Reading ends after this long, or this share of the budget where that is less; a study begun is read."""
MOST_BYTES: Final = 8 * 1024 * 1024
"""A larger journal is not read."""


def gather(
    present: Study,
    *,
    folders: Sequence[Path] | None = None,
    now_s: Callable[[], float] = time.monotonic,
) -> Transfer | None:
    """What earlier studies tell this one.

    Args:
        present: As its own journal has it before its first trial, so that both sides of every comparison
            went through the same redaction.
        folders: Of studies, newest first; those below the home where None.
        now_s: For the limit on time.

    Returns:
        None where nothing is to be taken over, or nothing was there.
    """
    if present.spec.transfer == OFF or present.spec.sampler != PLANNER:
        return None
    until_s = now_s() + min(MOST_S, MOST_SHARE * present.spec.budget.seconds)
    try:
        found = newest_study_dirs() if folders is None else folders
        mine = fingerprint(present)
    except (OSError, AutotuneError):
        log.warning("earlier studies could not be searched for", exc_info=True)
        return None
    own: list[Earlier] = []
    others: list[Earlier] = []
    left_out: list[str] = []
    for path in [p for p in found if p.name != present.spec.study_id][:MOST_READ]:
        if len(own) == MOST_OWN and len(others) == MOST_OTHERS:
            break
        if now_s() > until_s:
            left_out.append(f"what is older than {path.name}: reading takes too long.")
            break
        told = _told(path, present, mine)
        if isinstance(told, str):
            left_out.append(told)
            log.info("earlier study left out: %s", told)
        elif told is not None:
            kin, most = (own, MOST_OWN) if is_own(mine, told.fingerprint) else (others, MOST_OTHERS)
            kin.extend([told][: most - len(kin)])
    if not own and not others and not left_out:
        return None
    return Transfer(present=mine, earlier=(*own, *others), left_out=tuple(left_out))


def _told(path: Path, present: Study, mine: Fingerprint) -> Earlier | str | None:
    """What one study tells; why it tells nothing, as a sentence; None where nobody would expect it to."""
    try:
        return _read(path, present, mine)
    except AutotuneError as error:
        return f"{path.name}: it cannot be read ({type(error).__name__})."
    except Exception as error:
        log.debug("an earlier study could not be read", exc_info=True)
        return f"{path.name}: it cannot be read ({type(error).__name__})."


def _read(path: Path, present: Study, mine: Fingerprint) -> Earlier | str | None:
    file = path / JOURNAL_FILE
    if not file.is_file():
        return None
    if file.stat().st_size > MOST_BYTES:
        return f"{path.name}: its journal is too large to be read here."
    if is_locked(path):
        return f"{path.name}: it has not ended."
    journal = Journal.read(file)
    try:
        entries: list[Entry] = []
        for entry in journal.entries():
            entries.append(entry)
            # Whose it is stands at its begin: what is of no use is not read to its end.
            if entry.kind == "inspected" and not _may_tell(fold(entries), present, mine):
                return None
        study = fold(entries)
    finally:
        journal.close()
    theirs = fingerprint(study)
    is_ours = is_own(mine, theirs)
    label = (study.spec.label if is_ours else "") or path.name
    if study.spec.purpose:
        return None
    if not study.stopped:
        return f"{label}: it has not ended."
    if not is_ours and (present.spec.transfer != ALL or theirs.versions != mine.versions):
        return None
    if theirs.device != mine.device:
        return f"{label}: another machine."
    if theirs.power != mine.power:
        return f"{label}: another power limit."
    if study.spec.objective != present.spec.objective:
        return f"{label}: another objective."
    if why := unfit(study):
        return f"{label}: {why}"
    assert study.facts is not None
    space, refusals = space_of(study.spec, study.facts)
    told = lessons(replace(study, space=space, refusals=refusals))
    return told if is_ours or told is None else _of_another_script(told, study)


def _may_tell(begun: Study, present: Study, mine: Fingerprint) -> bool:
    """It is a search of the same script, or of another one where these are asked for."""
    if begun.spec.purpose:
        return False
    return present.spec.transfer == ALL or is_own(mine, fingerprint(begun))


def _of_another_script(told: Earlier, study: Study) -> Earlier:
    """What each built-in value did: knobs that its user declared stay where they mean something."""
    requests = (study.spec.space, *study.spec.space.candidates)
    declared = {spec.name for request in requests for spec in request.declared}
    return replace(
        told,
        starts=(),
        seen=(),
        gains=tuple(gain for gain in told.gains if gain.knob not in declared),
        owns={knob: value for knob, value in told.owns.items() if knob not in declared},
        compile_s={},
        doubted=(),
        # A report is made to be sent on: which other scripts there are is nobody's business.
        label=told.study_id,
        fingerprint=replace(told.fingerprint, script="", path="", args="", modules="", data=""),
    )
