"""One source: speed-up, interval and configuration read the same wherever a person reads them."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pages
import pytest
import report_study
import yaml

from autotune.answer.contributions import contributions
from autotune.answer.pick import answer
from autotune.driver.result import result_data
from autotune.export.best_config import write_best
from autotune.report.html.page import report_html
from autotune.report.mlflow import run_content as record
from autotune.report.text.answer_screen import answer_screen
from autotune.report.view.contribution_text import gain_text, gains_text
from autotune.report.view.report_data import report_data
from autotune.report.view.study_view import View
from autotune.report.view.summary import further_reasons, significant

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
    write_best(path, study, found, lambda _config: ())
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
    screen = answer_screen(study, found, out="/project/best.yaml", details=True)
    assert f"{best.speedup.value:.2f}x [{best.speedup.low:.2f}, {best.speedup.high:.2f}]" in screen
    for end in (best.speedup.value, best.speedup.low, best.speedup.high):
        assert f"{end:.2f}x" in hero
    for reason in (best.loss.reason, *further_reasons(best)):
        assert reason in screen
        assert reason in hero
    assert contributions(study, best).parts
    for part in contributions(study, best).parts:
        assert part.source == "pairs"
        assert gain_text(part) in hero, "what each knob brings"
    why = gains_text(study, best)
    assert why in screen
    assert why in hero


@pytest.fixture
def logged(study, found, tmp_path, tmp_path_factory):
    """What MLflow's API gives back of the study's run, and its artifact `report.html`."""
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    from autotune.report.mlflow.recorder import MlflowSink

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
    names = {a.path for a in client.list_artifacts(run.info.run_id)}
    assert {"report.html", "report.md"} <= names
    return run, Path(client.download_artifacts(run.info.run_id, "report.html", str(tmp_path))).read_text()


def changed(knobs, own):
    """What a pick changes, reported by its complete values and those of the script."""
    return {knob: value for knob, value in knobs.items() if knob in own and value != own[knob]}


@pytest.mark.mlflow
def test_terminal_json_best_yaml_mlflow_and_page_read_back_one_speedup_interval_and_config(
    page, written, terminal, logged
):
    run, _ = logged
    metrics, own = run.data.metrics, written["baseline"]["knobs"]
    by_text = {
        record.param_text(value): value
        for knobs in (own, page["picks"]["best"]["config"])
        for value in knobs.values()
    }
    params = {knob: by_text.get(text, text) for knob, text in run.data.params.items() if knob in own}
    speedups = {
        "page": [page["picks"]["best"]["speedup"][end] for end in ENDS],
        "best.yaml": [written["picks"]["best"]["speedup"][end] for end in ENDS],
        "terminal": [terminal["picks"]["best"]["speedup"][end] for end in ENDS],
        "mlflow": [metrics[name] for name in ("speedup", "speedup_ci_low", "speedup_ci_high")],
    }
    # MLflow's table prints every digit that it is given, so it is given four.
    assert len({tuple(map(significant, found)) for found in speedups.values()}) == 1, speedups
    assert speedups["page"] == speedups["best.yaml"] == speedups["terminal"], "to the last digit"
    assert speedups["page"][1] < speedups["page"][0] < speedups["page"][2]
    configs = {
        "page": page["picks"]["best"]["config"],
        "best.yaml": changed(written["picks"]["best"]["knobs"], own),
        "terminal": changed(terminal["picks"]["best"]["knobs"], terminal["baseline"]["knobs"]),
        "mlflow": changed(params, own),
    }
    assert all(config == configs["page"] for config in configs.values()), configs
    assert len(configs["page"]) == 4
    value, low, high = speedups["page"]
    assert run.info.run_name.startswith(f"{value:.2f}x [{low:.2f}, {high:.2f}] · ")


@pytest.mark.mlflow
def test_mlflow_holds_the_other_figures_and_the_page(page, logged):
    run, kept = logged
    assert run.data.metrics["safe_speedup"] == significant(page["picks"]["safe"]["speedup"]["value"])
    assert pages.data(kept)["picks"] == page["picks"]
