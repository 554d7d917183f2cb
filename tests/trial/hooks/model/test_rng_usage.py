"""When the calls of a model are looked at for random numbers, and what is made of it; with a fake torch."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.trial.hooks.model.rng_usage import ON_DEVICE, ON_HOST, LoopDraws, RngUsage


class Torch:
    """Generators as numbers that say where they stand, by device; None is the CPU's."""

    def __init__(self) -> None:
        self.at: dict[int | None, int] = {None: 0, 0: 0, 1: 0}
        self.requested: list[int | None] = []
        self.capturing = False
        self.initialized = False
        self.cuda = SimpleNamespace(
            get_rng_state=self.get_rng_state,
            is_initialized=lambda: self.initialized,
            current_device=lambda: 1,
        )
        self.nn = SimpleNamespace(parameter=SimpleNamespace(is_lazy=lambda parameter: parameter.lazy))

    def get_rng_state(self, device: int | None = None) -> int:
        self.requested.append(device)
        if self.capturing and device is not None:
            raise RuntimeError("Cannot call CUDAGeneratorImpl::current_seed during CUDA graph capture.")
        return self.at[device]

    @staticmethod
    def equal(one: int, other: int) -> bool:
        return one == other


def module(
    device: str = "cpu", index: int | None = None, *, training: bool = True, lazy: bool = False
) -> Any:
    parameter = SimpleNamespace(lazy=lazy, device=SimpleNamespace(type=device, index=index))
    return SimpleNamespace(training=training, parameters=lambda: iter([parameter]))


def called(draws: RngUsage, model: Any, torch: Torch, *drawn: int | None) -> bool:
    draws.begins(model)
    for device in drawn:
        torch.at[device] += 1
    draws.ended()
    return draws.seen


def test_a_generator_that_moved_inside_a_call_is_seen_and_one_that_moved_outside_is_not() -> None:
    torch = Torch()
    draws = RngUsage(torch)
    assert not called(draws, module(), torch)
    torch.at[None] += 1
    assert not draws.seen
    assert called(draws, module(), torch, None)


def test_the_generator_of_the_models_own_device_counts() -> None:
    torch = Torch()
    assert called(RngUsage(torch), module("cuda", 1), torch, 1)
    assert not called(RngUsage(torch), module("cuda", 1), torch, 0)
    assert set(torch.requested) == {None, 1}
    assert called(RngUsage(torch), module("cuda"), torch, 0)


def test_the_streams_of_python_count() -> None:
    torch = Torch()
    draws = RngUsage(torch)
    draws.begins(module())
    random.random()
    draws.ended()
    assert draws.seen


def test_only_the_first_calls_are_looked_at_and_calls_in_evaluation_mode_use_none_up() -> None:
    torch = Torch()
    draws = RngUsage(torch)
    for _ in range(5):
        assert not called(draws, module(training=False), torch)
    for _ in range(2):
        assert not called(draws, module(), torch)
    requested = len(torch.requested)
    assert not called(draws, module(), torch, None)
    assert len(torch.requested) == requested


def test_what_is_seen_stays_and_nothing_more_is_requested() -> None:
    torch = Torch()
    draws = RngUsage(torch)
    assert called(draws, module(), torch, None)
    requested = len(torch.requested)
    assert called(draws, module(), torch)
    assert len(torch.requested) == requested


def test_weights_that_are_made_in_the_first_call_are_no_noise() -> None:
    torch = Torch()
    draws = RngUsage(torch)
    assert not called(draws, module(lazy=True), torch, None)
    assert not called(draws, module(), torch)


@pytest.mark.parametrize("when", ["before", "after"])
def test_generators_that_do_not_tell_count_as_moved(when: str) -> None:
    torch = Torch()
    draws = RngUsage(torch)
    torch.capturing = when == "before"
    draws.begins(module("cuda", 0))
    torch.capturing = True
    draws.ended()
    assert draws.seen


# Between the fetch of a batch and its backward pass


def passed(draws: LoopDraws, torch: Torch, *drawn: int | None) -> str:
    """A batch is fetched, so much is drawn, and the backward pass begins."""
    draws.fetched()
    for device in drawn:
        torch.at[device] += 1
    draws.backward()
    return draws.where


def test_what_the_loop_draws_for_a_batch_is_seen_but_for_the_first_which_may_make_weights() -> None:
    torch = Torch()
    draws = LoopDraws(torch)
    assert passed(draws, torch, None) == ""
    assert passed(draws, torch) == ""
    assert passed(draws, torch, None) == ON_HOST


def test_what_is_drawn_between_a_backward_pass_and_the_next_fetch_is_not_for_a_batch() -> None:
    torch = Torch()
    draws = LoopDraws(torch)
    for _ in range(4):
        assert passed(draws, torch) == ""
        torch.at[None] += 1


def test_whose_generator_moves_is_reported_and_the_host_has_the_last_word() -> None:
    torch = Torch()
    torch.initialized = True
    draws = LoopDraws(torch)
    passed(draws, torch)
    assert passed(draws, torch, 0) == "", "another device than the current one"
    assert passed(draws, torch, 1) == ON_DEVICE
    assert passed(draws, torch) == ON_DEVICE
    assert passed(draws, torch, 1, None) == ON_HOST


def test_a_pass_over_a_loader_draws_for_itself() -> None:
    torch = Torch()
    draws = LoopDraws(torch)
    for _ in range(4):
        draws.fetched()
        torch.at[None] += 1
        draws.withdrawn()
        draws.backward()
    assert draws.where == ""


def test_a_loop_that_draws_nothing_is_looked_at_no_longer() -> None:
    torch = Torch()
    draws = LoopDraws(torch)
    for _ in range(5):
        passed(draws, torch)
    requested = len(torch.requested)
    assert passed(draws, torch, None) == ""
    assert len(torch.requested) == requested


def test_a_loop_in_which_generators_do_not_tell_counts_as_one_that_draws() -> None:
    torch = Torch()
    torch.initialized = True
    draws = LoopDraws(torch)
    passed(draws, torch)
    torch.capturing = True
    assert passed(draws, torch) == ON_HOST
