"""What was reckoned lately is found again by the very objects it hangs on, and by nothing else."""

from __future__ import annotations

from dataclasses import replace

from study_fakes import study

from autotune.model.identity_cache import IdentityCache, study_key


def test_the_same_objects_find_the_answer_again_and_equal_ones_do_not() -> None:
    memo: IdentityCache[list[int]] = IdentityCache(size=2)
    made: list[int] = []

    def make() -> list[int]:
        made.append(len(made))
        return made

    one, twin = str(1e9), str(1e9)
    assert one == twin
    for key in ((one, made), (one, made), (twin, made), (one, made)):
        memo.get(key, make)
    assert len(made) == 2
    memo.get((one,), make)
    assert len(made) == 3, "a shorter key is another one"
    memo.get((one, made), make)
    assert len(made) == 4, "only the last two are kept"


def test_clocks_are_no_part_of_what_an_answer_hangs_on_and_runs_are() -> None:
    made = study()
    later = replace(made, elapsed_s=made.elapsed_s + 10.0, stopped="finished")
    shorter = replace(made, trials=made.trials[:-1])
    memo: IdentityCache[int] = IdentityCache()
    assert memo.get(study_key(made), lambda: 1) == 1
    assert memo.get(study_key(later), lambda: 2) == 1
    assert memo.get(study_key(shorter), lambda: 3) == 3
    assert memo.get(study_key(replace(made, spec=replace(made.spec))), lambda: 4) == 4
    assert memo.get(study_key(made, "more"), lambda: 5) == 5
