"""The Python interface in a real notebook: a kernel runs a search, and every output is what a person sees."""

import os
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="pip install nbclient ipykernel")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.torch,
    pytest.mark.mlflow,
    pytest.mark.timeout(900),
    # Of the notebook's own libraries.
    pytest.mark.filterwarnings("ignore"),
]
TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(2048, 64), torch.randint(0, 4, (2048,)))
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.AdamW(model.parameters())
for epoch in range(400):
    for x, y in DataLoader(data, batch_size=32, shuffle=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""
SEARCH = """
import autotune

class Enough(autotune.Listener):
    def trial_ended(self, study, trial):
        if len(study.trials) >= 3:
            self.stop()

found = autotune.tune(
    "train.py", budget="4m", knob=["threads", "fused_optimizer"], transfer="off", progress=Enough()
)
"""
LOAD = """
loaded = autotune.load(found.study.spec.label)
print(loaded.reason, len(loaded.trials), found.to_dict()["unsent"])
"""
RESUME = """
more = autotune.resume(found.study.spec.label, trials=1, progress=True)
print(len(more.trials))
"""
SELECT = """
per_gib = found.select(lambda m: m.throughput.value / m.memory.peak_bytes)
print(per_gib.outcome)
"""
ERROR = """
try:
    autotune.tune("train.py", budget="30")
except autotune.AutotuneError as error:
    print(error)
"""
DEPRECATED = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        autotune.tune("train.py", knobs=["no_such_knob"])
    except autotune.AutotuneError:
        print([str(w.message) for w in caught])
"""
CELLS = (SEARCH, "found", "found.trials", "found.plot()", LOAD, RESUME, SELECT, ERROR, DEPRECATED)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Per cell its outputs, after one run from top to bottom; an exception in a cell fails it."""
    folder = tmp_path_factory.mktemp("notebook")
    (folder / "train.py").write_text(TRAIN)
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    given = {
        "AUTOTUNE_HOME": str(folder / "home"),
        "AUTOTUNE_LOCKS": str(folder / "locks"),
        "AUTOTUNE_PYTHON": sys.executable,
        "IPYTHONDIR": str(folder / "ipython"),
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    client = nbclient.NotebookClient(
        book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env={**os.environ, **given})
    return [cell.outputs for cell in book.cells]


def printed(cell):
    return "".join(o.text for o in cell if o.output_type == "stream" and o.name == "stdout")


def test_a_search_that_a_listener_stops_is_silent(outputs):
    assert outputs[0] == []


def test_the_result_shows_its_card_and_fetches_nothing(outputs):
    (shown,) = outputs[1]
    page = shown.data["text/html"]
    assert "train.py" in page
    assert "autotune " in page
    assert "http" not in page


def test_trials_are_a_table_and_the_plot_is_a_picture(outputs):
    (table,), (figure,) = outputs[2], outputs[3]
    assert "<table" in table.data["text/html"]
    assert "throughput" in table.data["text/html"]
    assert len(figure.data["image/png"]) > 1000


def test_a_search_is_loaded_and_resumed_by_its_name(outputs):
    reason, count, unsent = printed(outputs[4]).split()
    assert (reason, int(count) >= 3, unsent) == ("interrupted", True, "0")
    assert int(printed(outputs[5]).split()[-1]) > int(count)


def test_progress_in_a_notebook_raises_no_warning(outputs):
    text = "".join(o.text for cell in outputs for o in cell if o.output_type == "stream")
    assert "trial" in text
    assert "Warning" not in text


def test_an_objective_of_ones_own_selects_and_an_error_holds_its_hint(outputs):
    assert printed(outputs[6]).strip() in {"faster", "nothing_faster", "inconclusive"}
    assert 'write "30s"' in printed(outputs[7])


def test_a_deprecated_name_warns(outputs):
    assert "knobs is now called knob" in printed(outputs[8])
