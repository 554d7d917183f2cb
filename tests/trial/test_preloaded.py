"""Tests of the training process share one process that has PyTorch loaded."""

import pytest
from preloaded import preloaded

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("test", ["a first test", "a second one, with a home of its own"])
def test_every_test_forks_the_one_preloaded_process(test):
    assert preloaded().fits()
