"""What a script did before it imported PyTorch; a fork of what has imported it already does it after."""

from __future__ import annotations

from typing import Any

import pytest
from trial_kit import PRELUDE

pytestmark = [pytest.mark.torch, pytest.mark.thorough]

TRAINS = """
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
"""


def test_variables_that_are_set_before_the_import_are_reported(run: Any) -> None:
    before = "import os\nos.environ['OF_MINE'] = '1'\nos.environ.pop('OMP_NUM_THREADS')\n"
    after = "os.environ['LATER'] = '1'\n"
    ran = run(before + PRELUDE + after + TRAINS, cold=True)
    assert ran.facts.environ_set == ("OF_MINE", "OMP_NUM_THREADS")
    assert ran.facts.loaded_first == ()


def test_a_script_that_begins_with_the_import_has_set_nothing(run: Any) -> None:
    ran = run("import numpy\n" + PRELUDE + TRAINS, cold=True)
    assert ran.facts.environ_set == ()
    assert ran.facts.loaded_first == ()


def test_a_package_that_brings_an_openmp_of_its_own_before_torch_is_named(run: Any) -> None:
    pytest.importorskip("sklearn")
    first = "from sklearn.cluster import KMeans\n"
    assert "sklearn" in run(first + PRELUDE + TRAINS, cold=True).facts.loaded_first
    assert run(PRELUDE + first + TRAINS, cold=True).facts.loaded_first == ()
