"""One source: speed-up, interval and configuration read the same wherever a person reads them."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pages
import pytest
import report_study
import yaml

from autotune.core.pick import answer
from autotune.driver.result import result_data
from autotune.export.best_config import write_best
from autotune.report.data import report_data
from autotune.report.gains import contributions, gains_text, share_text, shares
from autotune.report.page import report_html
from autotune.report.study_view import View
from autotune.report.summary import further_reasons, significant
from autotune.report.text import final_screen

ENDS = ("value", "low", "high")


@pytest.fixture(scope="module")
def study():
    return report_study.made()


@pytest.fixture(scope="module")
def found(study):
    return answer(study)


@pytest.fixture(scope="module")
def page(study, found):
    return pages.data(report_html(study, found))


@pytest.fixture
def written(study, found, tmp_path):
    path = tmp_path / "best.yaml"
    write_best(path, study, found, lambda _config: (), gains_of=lambda config: contributions(study, config))
    return yaml.safe_load(path.read_text())


@pytest.fixture
def terminal(study, found, monkeypatch):
    import autotune.driver.result as result

    monkeypatch.setattr(result, "changes_of", lambda _study: lambda _config: ())
    end = SimpleNamespace(study=study, answer=found, links={}, unsent=0, study_dir=Path("/s"), exit_code=0)
    return json.loads(json.dumps(result_data(end, 0)))


def test_terminal_json_best_yaml_and_page_have_equal_picks(page, written, terminal):
    assert set(page["picks"]) == set(written["picks"]) == set(terminal["picks"])
    assert {"best", "safe"} <= set(page["picks"])
    for name, pick in page["picks"].items():
        for other in (written["picks"][name], terminal["picks"][name]):
            assert {e: pick["speedup"][e] for e in ENDS} == {e: other["speedup"][e] for e in ENDS}, name
            assert pick["speedup"]["n"] == other["speedup"]["n"]
            assert pick["speedup"]["confidence"] == other["speedup"]["confidence"]
            assert pick["throughput"]["value"] == other["throughput"]["value"]
            assert pick["trial"] == other["trial"]
            assert pick["loss"]["verdict"] == other["loss"]["verdict"]
            assert {k: other["knobs"][k] for k in pick["config"]} == pick["config"]
            own = terminal["baseline"]["knobs"]
            assert {k for k, v in other["knobs"].items() if v != own.get(k)} == set(pick["config"])
            gains = {c["knob"]: c["gain"] for c in pick["contributions"]}
            assert gains == pytest.approx(
                {c["knob"]: c["gain"] for c in written["picks"][name]["contributions"]}
            )
    assert page["baseline"]["throughput"]["value"] == written["baseline"]["throughput"]["value"]
    assert page["sentence"] == terminal["sentence"]
    assert page["failures"] == terminal["failures"]


def test_the_json_of_the_report_and_of_its_page_are_the_same(study, found, page):
    assert json.loads(json.dumps(report_data(View.of(study, found)))) == page


def test_what_people_read_in_the_terminal_stands_on_the_first_screen(study, found):
    hero = pages.read(report_html(study, found)).by_id("answer").text
    best = found.best
    screen = final_screen(study, found, out="/project/best.yaml")
    assert f"{best.speedup.value:.2f}x [{best.speedup.low:.2f}, {best.speedup.high:.2f}]" in screen
    for end in (best.speedup.value, best.speedup.low, best.speedup.high):
        assert f"{end:.2f}x" in hero
    for reason in (best.loss.reason, *further_reasons(best)):
        assert reason in screen
        assert reason in hero
    for share in shares(study, best.config):
        assert share.pairs
        assert share_text(share) in hero, "what each knob brings"
    why = gains_text(study, best)
    assert why in screen
    assert why in hero


@pytest.mark.mlflow
@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="MLflow is not installed")
def test_mlflow_holds_the_same_figures_and_the_page(study, found, page, tmp_path, tmp_path_factory):
    from mlflow import MlflowClient

    from autotune.report.mlflow import MlflowSink

    template = tmp_path_factory.getbasetemp() / "template" / "mlflow.db"
    if not template.exists():
        MlflowSink(f"sqlite:///{template}").open()
    shutil.copy(template, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    sink = MlflowSink(uri)
    sink.send("study_began", {"wall_s": 1.0}, study)
    sink.send("study_ended", {"wall_s": 2.0, "why": "finished"}, study, found)
    client = MlflowClient(tracking_uri=uri)
    experiment = next(e for e in client.search_experiments() if e.name != "Default")
    (run,) = client.search_runs([experiment.experiment_id])
    best = page["picks"]["best"]
    assert run.data.metrics["speedup"] == significant(best["speedup"]["value"])
    assert run.data.metrics["speedup_ci_low"] == significant(best["speedup"]["low"])
    assert run.data.metrics["speedup_ci_high"] == significant(best["speedup"]["high"])
    assert run.data.metrics["safe_speedup"] == significant(page["picks"]["safe"]["speedup"]["value"])
    for knob, value in best["config"].items():
        assert run.data.params[knob] == (str(value).lower() if isinstance(value, bool) else str(value))
    names = {a.path for a in client.list_artifacts(run.info.run_id)}
    assert {"report.html", "report.md"} <= names
    kept = Path(client.download_artifacts(run.info.run_id, "report.html", str(tmp_path))).read_text()
    assert pages.data(kept)["picks"] == page["picks"]
