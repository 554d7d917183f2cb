"""Training code that is an installed package, run by ``python -m`` or by its console script."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from trial_kit import PRELUDE

from autotune.model.change import Change, Keyword
from autotune.trial.runtime.faults import Faults
from autotune.trial.runtime.state import RuntimeState

if TYPE_CHECKING:
    from collections.abc import Callable

INSTALLED = (
    PRELUDE
    + """
def rows(n, **options):
    return DataLoader(TensorDataset(torch.randn(n, 4)), **options)

kept = []

def main():
    labelled = rows(32, batch_size=8)
    others = rows(64, batch_size=16)
    held_out = rows(16, batch_size=4)
    kept.extend([labelled, others, held_out])
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sizes = []
    for epoch in range(4):
        for (x,), (u,) in zip(labelled, others):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = model(torch.cat([x, u])).float().square().mean()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            sizes = [len(x) for (x,) in held_out]
    reported(sizes=sizes)

if __name__ == "__main__":
    main()
"""
)
WRAPPER = """#!/venv/bin/python
import sys
from shop.train import main
if __name__ == "__main__":
    sys.exit(main())
"""


@pytest.mark.torch
@pytest.mark.parametrize("way", ["module", "console script"])
def test_the_package_that_is_run_is_the_users_own(run: Callable[..., Any], tmp_path: Path, way: str) -> None:
    packages = tmp_path / "site-packages"
    env = {"PYTHONPATH": f"{packages}:{Path(__file__).parents[2]}"}
    at, text, module = "site-packages/shop/train.py", INSTALLED, "shop.train"
    if way == "console script":
        (packages / "shop").mkdir(parents=True)
        (packages / "shop" / "train.py").write_text(INSTALLED)
        at, text, module = "bin/shop-train", WRAPPER, ""
    ran = run(text, at=at, module=module, env=env)
    assert ran.faults == ""
    loader = ran.facts.loader
    built, called = loader.site.split("<") if "<" in loader.site else (loader.site, "train.py:")
    assert (built[:9], called[:9]) == ("train.py:", "train.py:")
    assert (loader.batch_size, loader.beside) == (16, 1)
    assert ran.facts.own_autocast
    fewer = Change(
        knob="num_workers",
        value=1,
        spelling=Keyword("torch.utils.data.DataLoader", "num_workers"),
        site=loader.site,
    )
    again = run(text, at=at, module=module, env=env, changes=[fewer])
    assert again.facts.values["num_workers"] == 1


@pytest.mark.parametrize(
    ("script", "own", "foreign"),
    [
        (
            "/v/site-packages/shop/cli/train.py",
            "/v/site-packages/shop/data.py",
            "/v/site-packages/shopping/a.py",
        ),
        ("/v/site-packages/train.py", "/v/site-packages/train.py", "/v/site-packages/shop/data.py"),
        ("/home/me/train.py", "/home/me/data.py", "/v/site-packages/shop/data.py"),
        ("/v/site-packages/torch/x.py", "/home/me/data.py", "/v/site-packages/torch/utils/data.py"),
    ],
)
def test_files_of_other_packages_are_not(script: str, own: str, foreign: str) -> None:
    state = RuntimeState(Faults(None), script)
    assert state.is_users(own)
    assert not state.is_users(foreign)


def test_an_autocast_of_the_package_that_is_run_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.trial.hooks.model import trained_modules

    state = RuntimeState(Faults(None), "/v/site-packages/shop/train.py")
    for file, is_own in (("/v/site-packages/shop/amp.py", True), ("/v/site-packages/other/amp.py", False)):
        frame = SimpleNamespace(
            f_code=SimpleNamespace(co_filename=file), f_globals={"__name__": "some.amp"}, f_back=None
        )
        monkeypatch.setattr(trained_modules, "caller", lambda _, found=frame: found)
        assert trained_modules.TrainedModules._by_user(SimpleNamespace(_state=state)) is is_own  # type: ignore[arg-type]
