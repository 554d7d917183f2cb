"""Energy and cost per sample: sums over sums, or the words that there is none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from study_fakes import BASE, measured, study

from autotune.compare.energy import cost_per_million, energy, run_joules
from autotune.model.trial import Stage


def run(number, *, window_s=10.0, steps=100, unit="samples/s", **extra):
    made = measured(number, BASE, 100.0, Stage.BASELINE)
    rate = replace(made.outcome.throughput, unit=unit)
    return replace(
        made, outcome=replace(made.outcome, throughput=rate, extra=extra, window_s=window_s, steps=steps)
    )


def test_energy_is_what_all_runs_took_over_all_their_samples() -> None:
    found = energy(
        study(trials=(run(0, energy_gpu_j=3200.0), run(1, energy_gpu_j=6400.0, steps=300), run(2))), BASE
    )
    assert found is not None
    assert found.joules_per_sample == pytest.approx(9600.0 / (400 * 32))
    assert (found.of, found.runs) == ("GPU", 2)


def test_both_counters_are_added_and_named() -> None:
    found = energy(study(trials=(run(0, energy_gpu_j=3200.0, energy_cpu_j=3200.0),)), BASE)
    assert found is not None
    assert found.joules_per_sample == pytest.approx(2.0)
    assert found.of == "GPU and CPU packages"


def test_without_a_counter_there_is_no_figure_and_not_zero() -> None:
    assert energy(study(trials=(run(0),)), BASE) is None
    assert run_joules(run(0, window_s=4.9, energy_gpu_j=5.0).outcome) is None, "too short to mean anything"
    assert run_joules(run(0, window_s=5.0, energy_gpu_j=5.0).outcome) == 5.0
    assert energy(study(trials=(run(0, unit="steps/s", energy_gpu_j=5.0),)), BASE) is None


def test_short_windows_count_together_once_they_are_long_enough() -> None:
    short = [run(k, window_s=2.0, energy_gpu_j=6400.0) for k in range(3)]
    assert energy(study(trials=tuple(short[:2])), BASE) is None
    found = energy(study(trials=tuple(short)), BASE)
    assert found is not None
    assert found.joules_per_sample == pytest.approx(2.0)
    tiny = [run(k, window_s=0.9, energy_gpu_j=6400.0) for k in range(9)]
    assert energy(study(trials=tuple(tiny)), BASE) is None


def test_runs_that_read_different_counters_are_not_added_up() -> None:
    gpu = run(0, energy_gpu_j=3200.0)
    both = run(1, energy_gpu_j=3200.0, energy_cpu_j=3200.0)
    assert energy(study(trials=(gpu, both)), BASE) is None
    assert energy(study(trials=(gpu, run(2))), BASE) is not None, "a run that read nothing takes no part"


def test_cost_follows_from_price_and_throughput() -> None:
    assert cost_per_million(3.6, 1000.0, "samples/s") == pytest.approx(1.0)
    assert cost_per_million(None, 1000.0, "samples/s") is None
    assert cost_per_million(3.6, 10.0, "steps/s") is None
