"""`autotune verify` from outside: the real command on a real script."""

import hashlib
import json

import pytest

from autotune.export.best_config import (
    SCHEMA,
    BaselinePart,
    BestConfig,
    ChangePart,
    EnvironmentPart,
    EstimatePart,
    LossPart,
    PickPart,
    StudyPart,
)
from autotune.export.write import save

pytestmark = [pytest.mark.slow, pytest.mark.torch, pytest.mark.timeout(700)]


def best_of_two_workers(script):
    """best.yaml as a search would write it, without its ten minutes."""
    rate = EstimatePart(value=400.0, unit="samples/s")
    change = ChangePart(
        knob="num_workers", how="keyword", spelling="torch.utils.data.DataLoader:num_workers", value=2
    )
    pick = PickPart(
        trial=3,
        effect="EXACT",
        knobs={"num_workers": 2},
        changes=[change],
        speedup=EstimatePart(value=2.0, low=1.8, high=2.2, n=6, unit="ratio"),
        throughput=rate,
        loss=LossPart(level=0, verdict="pass"),
    )
    return BestConfig(
        schema=SCHEMA,
        study=StudyPart(id="01KAK2M7Q4ZC0V9X3T5R8W6Y1B", script=script.name),
        is_better=True,
        baseline=BaselinePart(throughput=rate),
        picks={"best": pick},
        environment=EnvironmentPart(
            script_sha256=hashlib.sha256(script.read_bytes()).hexdigest(), torch="1.0"
        ),
    )


def test_a_large_gain_that_is_there_ends_with_0(place):
    place.script("slow_loader.py")
    save(place.folder / "best.yaml", best_of_two_workers(place.folder / "slow_loader.py"))
    ended = place.run("verify", "best.yaml", "--budget", "8m", "--json", timeout_s=600)
    assert ended.exit == 0, ended
    reported = json.loads(ended.out)
    assert reported["verdict"] == "faster"
    assert reported["speedup"]["low"] > 1.2
    assert reported["speedup"]["n"] >= 3
    assert "the search ran with 1.0" in reported["differs"]["torch"]
    assert "script" not in reported["differs"]
    listed = place.run("list")
    assert "w2: faster" in listed.out
