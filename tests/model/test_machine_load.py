"""What else uses the machine is named once, in one line, and by nothing but its name."""

from __future__ import annotations

from dataclasses import replace

from autotune.model.machine_load import Culprit, MachineLoad, named, news, quiet_cores, summary, warning
from autotune.model.wire import from_wire, to_wire

FFMPEG = Culprit(name="ffmpeg", pid=4711, cores=1.0)


def load(*culprits: Culprit, cores: float = 1.0, slow: tuple[str, ...] = ()) -> MachineLoad:
    return MachineLoad(foreign_cores=cores, cpus=2, culprits=culprits, slowdowns=slow)


def test_the_line_names_the_culprit_its_share_and_the_option_that_waits() -> None:
    (sentence,) = news(load(FFMPEG), set())
    assert warning(sentence, advises=True) == (
        'busy: "ffmpeg" (pid 4711) uses 1.0 of 2 cores; readings will scatter. '
        "Wait for it with --wait-for-quiet 10m."
    )
    assert warning(sentence, advises=False).endswith("readings will scatter.")


def test_a_culprit_is_named_once_and_another_one_again() -> None:
    known: set[tuple[str, str]] = set()
    assert len(news(load(FFMPEG), known)) == 1
    assert news(load(Culprit(name="ffmpeg", pid=5000, cores=1.4)), known) == []
    assert len(news(load(FFMPEG, Culprit(name="cc1plus", pid=9, cores=0.5)), known)) == 1


def test_a_quiet_machine_has_no_line() -> None:
    assert news(load(Culprit(name="sshd", pid=1, cores=0.1), cores=0.1), set()) == []
    assert quiet_cores(2) == 0.35
    assert quiet_cores(64) == 3.2


def test_processes_of_one_name_count_together_and_small_ones_are_left_out() -> None:
    cores = [Culprit(name="cc1plus", pid=n, cores=0.4 + n / 100) for n in range(3)]
    idle = [Culprit(name=name, pid=9, cores=0.01) for name in ("sshd", "cc1plus")]
    found = named([*cores, *idle], 1.25)
    (one,) = found
    assert (one.name, one.count, one.pid) == ("cc1plus", 3, 2)
    (sentence,) = news(load(one), set())
    assert sentence == '"cc1plus" (pid 2 and 2 more) uses 1.2 of 2 cores'


def test_time_that_no_visible_process_has_spent_is_named_as_such() -> None:
    (one,) = named([], 1.5)
    (sentence,) = news(load(one, cores=1.5), set())
    assert sentence == "a process without a visible name uses 1.5 of 2 cores"


def test_an_accelerator_is_busy_by_a_foreign_process_or_by_its_clocks() -> None:
    busy = load(Culprit(name="python3", pid=7, device="H100"), cores=0.0)
    assert news(busy, set()) == ['"python3" (pid 7) computes on H100']
    slow = load(cores=0.0, slow=("H100: hw_thermal",))
    assert news(slow, set()) == ["the clocks of H100 are held down (hw_thermal)"]


def test_another_search_is_busy_without_any_load_and_named_by_its_study() -> None:
    other = Culprit(name="", pid=4711, study="study train-1 of ann")
    beside = load(other, cores=0.0)
    assert beside.is_busy
    known: set[tuple[str, str]] = set()
    assert news(beside, known) == ["study train-1 of ann (pid 4711) measures on the same CPUs"]
    assert news(beside, known) == []
    on_gpu = replace(other, device="accelerators")
    assert news(load(on_gpu), known) == ["study train-1 of ann (pid 4711) measures on the same accelerators"]
    loads = [load(*(Culprit(name=f"cc{n}", pid=n, cores=1.0) for n in range(1, 4))), beside]
    assert summary(loads)[0] == (
        "The machine was busy: study train-1 of ann (pid 4711) measured on the same CPUs."
    )
    assert from_wire(MachineLoad, to_wire(beside)) == beside


def test_the_notes_of_a_study_name_each_culprit_at_its_largest() -> None:
    loads = [
        load(FFMPEG),
        load(Culprit(name="ffmpeg", pid=5000, cores=1.4)),
        load(slow=("H100: hw_thermal",)),
    ]
    assert summary(loads) == [
        'The machine was busy: "ffmpeg" (pid 5000) used 1.4 of 2 cores.',
        "The machine was busy: the clocks of H100 were held down (hw_thermal).",
    ]
    assert summary([]) == []


def test_a_check_is_journaled_and_read_back() -> None:
    assert from_wire(MachineLoad, to_wire(load(FFMPEG, slow=("a: b",)))) == load(FFMPEG, slow=("a: b",))
