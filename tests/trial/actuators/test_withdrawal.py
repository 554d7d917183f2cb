"""Under `apply` a knob that the run contradicts goes back to the script's own value, with one warning."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from autotune.knobs.registry import builtin
from autotune.model.change import Change, Patch
from autotune.trial.actuators.withdrawal import Withdrawal
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.state import RuntimeState

if TYPE_CHECKING:
    from collections.abc import Callable


class Ended(Exception):
    pass


def ends(knob: str, why: str) -> NoReturn:
    raise Ended(why)


class Seams:
    """Notes what is undone."""

    def __init__(self, *, broken: bool = False) -> None:
        self.undone: list[tuple[str, Any]] = []
        self.broken = broken
        self.accumulation = SimpleNamespace(set=lambda factor: self.note("accumulation", factor))
        self.loader = SimpleNamespace(give_back=lambda keyword: self.note("loader", keyword))
        self.compile = SimpleNamespace(end=lambda: not broken)

    def note(self, what: str, value: Any) -> bool:
        if self.broken:
            raise RuntimeError(what)
        self.undone.append((what, value))
        return True


@pytest.fixture
def withdrawal() -> Callable[..., tuple[Withdrawal, Seams]]:
    def make(*, strict: bool = False, broken: bool = False, **requested: Any) -> tuple[Withdrawal, Seams]:
        changes = [Change(knob=knob, value=value, spelling=Patch()) for knob, value in requested.items()]
        made = Withdrawal(changes, builtin(), RuntimeState(Faults(None), "s.py"), strict=strict, end=ends)
        hooks = Seams(broken=broken)
        made.patches = hooks  # pyright: ignore[reportAttributeAccessIssue]
        return made, hooks

    return make


def test_knobs_that_belong_together_are_undone_together_and_once(withdrawal: Any, capsys: Any) -> None:
    made, hooks = withdrawal(accumulation=4, batch_size=64, threads=2)
    for _ in range(2):
        made.withdraw("accumulation", "The optimizer steps with a closure.")
    assert hooks.undone == [("accumulation", 1), ("loader", "batch_size")]
    assert capsys.readouterr().err == (
        "autotune: warning: accumulation=4 and batch_size=64 withdrawn after step 0: "
        "The optimizer steps with a closure. The training continues.\n"
    )
    assert made.gone == {"accumulation", "batch_size"}


def test_a_knob_that_was_not_requested_is_left_alone(withdrawal: Any, capsys: Any) -> None:
    made, hooks = withdrawal(threads=2)
    made.withdraw("accumulation", "why")
    made.aside(("precision",), "is left out")
    assert (hooks.undone, capsys.readouterr().err) == ([], "")


def test_what_cannot_be_undone_is_reported_and_the_training_goes_on(withdrawal: Any, capsys: Any) -> None:
    made, _ = withdrawal(threads=2)
    made.withdraw("threads", "Something else.")
    assert "threads=2 cannot be withdrawn in a running training: Something else." in capsys.readouterr().err
    made, _ = withdrawal(compile_mode="default", broken=True)
    made.withdraw("compile_mode", "Something else.")
    assert "compile_mode=default cannot be withdrawn" in capsys.readouterr().err
    made, _ = withdrawal(num_workers=2, broken=True)
    made.withdraw("num_workers", "Something else.")
    assert "num_workers=2 cannot be withdrawn" in capsys.readouterr().err


def test_strict_ends_before_anything_is_undone(withdrawal: Any) -> None:
    made, hooks = withdrawal(strict=True, num_workers=4, persistent_workers=True)
    with pytest.raises(Ended, match=r"num_workers contradicts the run .*: the script changed x"):
        made.withdraw("num_workers", "the script changed x")
    with pytest.raises(Ended, match="is left out"):
        made.aside(("num_workers",), "is left out")
    made.aside(("num_workers",), "is left out of an export", is_exact=True)
    assert hooks.undone == []


def test_what_is_left_out_for_a_moment_is_reported_once_for_each_reason(withdrawal: Any, capsys: Any) -> None:
    made, _ = withdrawal(precision="bf16")
    for reason in ("is left out of a", "is left out of a", "is left out of b"):
        made.aside(("precision", "compile_mode"), reason)
    assert capsys.readouterr().err.splitlines() == [
        f"autotune: warning: precision=bf16 is left out of {x}. The training continues." for x in "ab"
    ]
