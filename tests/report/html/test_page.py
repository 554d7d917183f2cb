"""The report: what it says; it needs nothing else, everybody can read it, and it is safe to send."""

import itertools
import re
import time
from dataclasses import replace
from pathlib import Path

import pages
import pytest
import report_study
from report_study import GIB, SAFE, WINNER

from autotune.answer.pick import answer
from autotune.config_files.presets import load_space
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.trial import Stage, TrialState
from autotune.report.html import template
from autotune.report.html.page import report_html
from autotune.report.html.sections.pairs import pairs_section
from autotune.report.html.sections.picks import picks_section
from autotune.report.view.environment import environment
from autotune.report.view.next_commands import commands
from autotune.report.view.reselection import SelectionCriteria, repick
from autotune.report.view.sanitize import clean
from autotune.report.view.study_view import View
from autotune.text.printable import visible


@pytest.fixture(scope="module")
def study():
    return report_study.made()


@pytest.fixture(scope="module")
def found(study):
    return answer(study)


@pytest.fixture(scope="module")
def page(study, found):
    return report_html(study, found)


@pytest.fixture(scope="module")
def tree(page):
    return pages.read(page)


def test_pages_of_mlflow_are_linked_where_a_server_shows_them(study, found, tree):
    shown = pages.read(report_html(study, found, links={"answer": "./#/runs/1", "table": "./#/runs"}))
    there = [(link.text, link.attributes["href"]) for link in shown.all("header")[0].all("a")]
    assert there == [("answer", "./#/runs/1"), ("table", "./#/runs")]
    assert "MLflow" not in tree.all("header")[0].text


def test_the_first_screen_answers_everything(tree, study, found):
    hero = tree.by_id("answer").text
    best = found.best
    assert best.config == WINNER
    assert f"{best.speedup.value:.2f}x" in hero
    assert f"{best.speedup.low:.2f}x" in hero
    assert f"{best.speedup.high:.2f}x" in hero
    assert f"in {best.speedup.n} pairs" in hero
    for knob, value in (
        ("precision", "bf16"),
        ("num_workers", "4"),
        ("channels_last", "on"),
        ("batch_size", "64"),
    ):
        assert knob in hero
        assert value in hero
    assert "Peak memory" in hero
    assert "times yours" in hero
    assert "Loss" in hero
    assert "autotune apply best.yaml -- python train.py --lr 1e-3" in hero
    failed = sum(found.failures.values())
    assert failed > 2
    assert f"{failed} trials, survived" in hero
    assert "measured without each" in hero, "the reasons"


def test_the_first_screen_says_why_before_what_to_type_and_says_no_figure_twice(tree, found):
    hero = tree.by_id("answer")
    text = hero.text
    assert text.index("measured without each") < text.index("autotune apply") < text.index("Peak memory")
    reported = hero.by_class("why")[0].text
    best = found.best
    assert f"{best.speedup.value:.2f} [" not in text, "the heading has it"
    assert "Its peak memory" not in reported, "the tile has it"
    assert best.loss.reason not in reported
    assert text.count(best.loss.reason) == 1
    assert "times yours at peak; there are " in text


def test_the_interval_of_a_claim_is_named_only_where_there_is_one():
    claimed = report_study.made()
    unclaimed = report_study.made(speed=dict.fromkeys(report_study.SPEED, 0.7) | {("num_workers", 4): 0.5})
    for made, is_better in ((claimed, True), (unclaimed, False)):
        section = str(picks_section(View.of(made, answer(made))))
        assert answer(made).is_better is is_better
        assert ("Its interval is one of" in section) is is_better


def test_where_the_winner_was_not_taken_apart_single_runs_say_what_brings_it():
    study = report_study.made(40, ablations=0)
    found = answer(study)
    tree = pages.read(report_html(study, found))
    hero, knobs = tree.by_id("answer").text, tree.by_id("knobs").text
    assert ", estimated from single runs" in hero
    assert "num_workers about +" in hero
    assert "about +" in tree.by_id("answer").by_class("chips")[0].text
    assert ", estimated" in knobs
    assert "measured without each" not in hero
    pick = pages.data(report_html(study, found))["picks"]["best"]
    assert {(part["how"], part["n"]) for part in pick["contributions"]} == {("estimated", 0)}
    known = [knob for part in pick["contributions"] for knob in (part["knob"], *part["also"])]
    assert sorted([*known, *pick["not_separated"]]) == sorted(pick["config"])
    assert "not separated" in hero


def test_every_part_of_the_evidence_is_there(tree):
    headings = " ".join(h.text for h in tree.all("h2"))
    for word in (
        "Picks",
        "memory",
        "knob",
        "Confirmation",
        "steady",
        "Loss",
        "Failures",
        "time",
        "Environment",
    ):
        assert word in headings
    for name in ("claims", "pareto", "effects", "pairs-best", "pairs-safe", "strips", "losses", "time"):
        assert tree.by_id(f"{name}-w-t").text, name
        assert tree.by_id(f"{name}-s-t").text, name


def test_what_is_confirmed_and_what_is_estimated_are_distinguished(tree):
    knobs = tree.by_id("knobs").text
    assert "estimated" in knobs
    assert "in pairs of fresh runs" in knobs
    assert "3 pairs" in knobs
    front = tree.by_id("front").text
    assert "no, single runs" in front


def test_every_measured_configuration_is_a_point_and_the_picks_are_labelled(tree, study):
    chart = next(s for s in tree.all("svg") if "pareto-w-t" in s.attributes.get("aria-labelledby", ""))
    tips = [t.text for t in chart.all("title")][1:]
    measured = {t.config for t in study.finished() if t.measurement is not None}
    assert len(tips) == len(measured)
    labels = [t.text for t in chart.all("text")]
    assert {"your script", "best", "safe"} <= set(labels)


def test_each_pair_is_drawn_with_its_ratio(tree, study, found):
    chart = next(s for s in tree.all("svg") if "pairs-best-w-t" in s.attributes.get("aria-labelledby", ""))
    labels = [t.text for t in chart.all("text")]
    assert [text for text in labels if text.startswith("pair ")] == [f"pair {i}" for i in range(1, 6)]
    assert sum(text.endswith("x") and text[0].isdigit() for text in labels) >= found.best.speedup.n


def test_a_config_that_changes_the_training_says_what_its_ratio_is_of(study, found):
    view = View.of(study, found)
    assert "time to equal loss" not in pairs_section(view)
    changed = {c: replace(v, effect=Effect.TRAINING) for c, v in view.compared.items()}
    assert "its ratio is of the time to equal loss" in pairs_section(replace(view, compared=changed))


def test_failures_are_reported_by_kind_and_config_with_their_last_lines(tree, study):
    text = tree.by_id("failures").text
    broken = next(
        t for t in study.finished() if t.failure is not None and t.failure.kind.label == "crash_exit"
    )
    assert "exited with an error" in text
    assert "out of GPU memory" in text
    assert f"t{broken.number:02d}" in text
    assert "RuntimeError: it broke" in text


# -- it needs nothing else ------------------------------------------------------------------------


def test_nothing_is_fetched(page, tree):
    assert not tree.all("link", "img", "iframe", "object", "embed", "base", "video", "audio", "form")
    for element in tree.all():
        for name in ("src", "srcset", "action", "xlink:href", "poster"):
            assert name not in element.attributes
        assert element.attributes.get("href", "#").startswith("#")
        assert not any(name.startswith("on") for name in element.attributes)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", "".join(
        e.text for e in tree.all("style", "script") if e.attributes.get("type") != "application/json"
    ))  # fmt: skip
    (policy,) = [m.attributes["content"] for m in tree.all("meta") if m.attributes.get("http-equiv")]
    assert policy.startswith("default-src 'none'")


def test_every_link_within_the_page_leads_somewhere(tree):
    names = [e.attributes["id"] for e in tree.all() if "id" in e.attributes]
    assert len(names) == len(set(names))
    links = [a.attributes["href"] for a in tree.all("a")]
    assert len(links) > 8
    assert {link[1:] for link in links} <= set(names)


# -- everybody can read it ------------------------------------------------------------------------


def test_headings_are_in_order_and_there_is_one_title(tree):
    levels = [int(h.tag[1]) for h in tree.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    assert tree.all("html")[0].attributes["lang"] == "en"
    assert tree.all("title")[0].text
    assert len(tree.all("main")) == 1


def test_every_chart_has_a_title_and_a_description(tree):
    charts = [s for s in tree.all("svg") if s.attributes.get("aria-hidden") != "true"]
    assert len(charts) > 12
    for chart in charts:
        assert chart.attributes["role"] == "img"
        title, text = chart.attributes["aria-labelledby"].split()
        assert len(tree.by_id(title).text) > 5
        assert len(tree.by_id(text).text) > 5


def test_every_table_has_a_caption_and_heads_with_a_scope(tree):
    tables = tree.all("table")
    assert len(tables) >= 5
    for each in tables:
        assert each.all("caption")[0].text
        heads = each.all("th")
        assert heads
        assert all(h.attributes.get("scope") in {"col", "row"} for h in heads)
        widths = {len([c for c in row.children if c.tag in {"td", "th"}]) for row in each.all("tr")}
        assert len(widths) == 1


def test_what_scrolls_can_be_reached_by_keyboard_and_has_a_name(tree):
    for box in tree.by_class("scroll"):
        assert box.attributes["tabindex"] == "0"
        assert box.attributes["aria-label"]
    assert tree.by_class("skip")[0].attributes["href"] == "#answer"


STYLE = Path(template.__file__).with_name("style.css").read_text(encoding="utf-8")
LIGHT, DARK = (
    dict(re.findall(r"--(\w+):(#\w+);", block))
    for block in STYLE.split("*{box-sizing")[0].split("@media screen")
)
TEXT_PAIRS = (
    ("ink", "page"),
    ("ink", "card"),
    ("ink", "sunk"),
    ("soft", "page"),
    ("soft", "card"),
    ("soft", "sunk"),
    ("link", "card"),
    ("link", "page"),
    ("best", "card"),
    ("best", "bestwash"),
    ("ink", "bestwash"),
    ("soft", "bestwash"),
    ("safe", "card"),
    ("fastest", "card"),
    ("script", "card"),
    ("bad", "card"),
    ("bad", "badwash"),
    ("ink", "badwash"),
    ("soft", "badwash"),
    ("warn", "card"),
    ("warn", "warnwash"),
    ("ink", "warnwash"),
    ("good", "card"),
)
"""Every (text, ground) that the page puts together; contrast of each is at least 4.5 (WCAG 2.2, 1.4.3)."""

MARK_PAIRS = (
    ("best", "card"),
    ("safe", "card"),
    ("fastest", "card"),
    ("script", "card"),
    ("bad", "card"),
    ("refine", "card"),
    ("confirm", "card"),
    ("ablate", "card"),
    ("initial", "card"),
    ("other", "card"),
)
"""Marks that carry meaning, and their ground; contrast of each is at least 3 (WCAG 2.2, 1.4.11)."""


def contrast(one, other):
    """Contrast ratio of two colours ``#rrggbb``, 1 to 21.

    Source: WCAG 2.2, definitions of contrast ratio and relative luminance,
    https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio
    """
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_text_and_marks_stand_out_from_their_ground(palette):
    for text, ground in TEXT_PAIRS:
        assert contrast(palette[text], palette[ground]) >= 4.5, (text, ground)
    for mark, ground in MARK_PAIRS:
        assert contrast(palette[mark], palette[ground]) >= 3.0, (mark, ground)


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_both_palettes_have_the_same_roles_and_the_sheet_uses_no_other(page):
    assert set(LIGHT) == set(DARK)
    used = set(re.findall(r"var\(--([a-z]+)\)", page))
    assert used
    assert used <= set(LIGHT)


def test_the_page_is_made_for_phones_for_print_and_for_the_dark(page):
    assert "width=device-width" in page
    assert "@media print" in page
    assert "prefers-color-scheme:dark" in page
    assert "prefers-reduced-motion" in page


# -- it is safe to send ---------------------------------------------------------------------------


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\u2028]]>"


def test_text_of_a_script_never_becomes_markup(study):
    trials = list(study.trials)
    at = next(i for i, t in enumerate(trials) if t.failure is not None)
    failure = replace(trials[at].failure, message=EVIL, evidence={"log_tail": EVIL})
    trials[at] = replace(trials[at], outcome=failure, config=Config({"note": EVIL}))
    spec = replace(study.spec, args=(EVIL,), label=EVIL, version=EVIL, script=f"/project/{EVIL}.py")
    evil = replace(study, trials=tuple(trials), spec=spec, refusals={EVIL: EVIL})
    page = report_html(evil, answer(evil))
    tree = pages.read(page)
    assert len(tree.all("script")) == 2
    assert not tree.all("img")
    assert pages.data(page)["failed"]
    assert visible(EVIL) in tree.by_id("failures").text


def test_secrets_and_private_folders_stay_out(study, monkeypatch):
    monkeypatch.setenv("MY_API_TOKEN", "canary-0123456789")
    monkeypatch.setenv("HOME", "/home/somebody")
    trials = list(study.trials)
    at = next(i for i, t in enumerate(trials) if t.failure is not None)
    tail = "token canary-0123456789\n  File /home/somebody/lib/x.py\n  File /project/train.py"
    trials[at] = replace(
        trials[at], outcome=replace(trials[at].failure, message=tail, evidence={"log_tail": tail})
    )
    spec = replace(study.spec, args=("--api-key", "hunter2hunter2"))
    reported = replace(study, trials=tuple(trials), spec=spec, refusals={"tf32": "canary-0123456789"})
    page = report_html(reported, answer(reported))
    assert "canary" not in page
    assert "hunter2" not in page
    assert "/home/somebody" not in page
    assert "/project/" not in page
    assert "~/lib/x.py" in page


def test_paths_in_commands_stay_as_they_are(study, found, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    args = ("--data=/home/somebody/x", "--quoted", "/home/somebody/a b", "--near", "/project/x")
    reported = replace(study, spec=replace(study.spec, args=args))
    command = "python train.py --data=/home/somebody/x --quoted '/home/somebody/a b' --near /project/x"
    given = commands(reported, found, None, "")
    assert given["apply"] == f"autotune apply best.yaml -- {command}"
    assert given["verify"] == f"autotune verify best.yaml -- {command}"
    assert environment(reported)["Command"] == command
    assert pages.data(report_html(reported, found))["study"]["command"] == command


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("in /data/train.py", "in ./train.py"),
        ("in /data.", "in .."),
        ("/mnt/data/train and ~/data/x", "/mnt/data/train and ~/data/x"),
        ("/database/x /data.old/x /data-2", "/database/x /data.old/x /data-2"),
        ("'/home/somebody/x' at /home/somebody", "'~/x' at ~"),
        ("file:///home/somebody/x sqlite:////home/somebody/x", "file://~/x sqlite:///~/x"),
        ("cc -I/home/somebody/x", "cc -I~/x"),
        ("/home/somebody-else/x", "/home/somebody-else/x"),
    ],
)
def test_only_whole_paths_are_shortened(study, monkeypatch, text, shown):
    monkeypatch.setenv("HOME", "/home/somebody")
    assert clean(replace(study, spec=replace(study.spec, cwd="/data")), text) == shown


def test_a_secret_in_a_name_or_a_value_stays_out_of_the_page(study, monkeypatch):
    monkeypatch.setenv("MY_API_TOKEN", "canary-0123456789")
    named = Config({"note": "canary-0123456789"})
    trials = tuple(
        replace(t, config=named) if t.config == study.trials[4].config else t for t in study.trials
    )
    spec = replace(
        study.spec,
        label="canary-0123456789",
        script="/project/canary-0123456789.py",
        args=("canary-0123456789",),
    )
    run = replace(study.facts.run, values={"note": "canary-0123456789"})
    reported = replace(study, trials=trials, spec=spec, facts=replace(study.facts, run=run))
    again = repick(reported, SelectionCriteria(max_memory_bytes=answer(reported).best.peak_bytes - 1))
    assert any(t.config == named for t in reported.finished())
    assert "canary" not in report_html(reported, answer(reported))
    assert "canary" not in report_html(reported, answer(reported), repicked=again)


# -- whatever a study is like ---------------------------------------------------------------------


def test_nothing_better_is_reported_without_a_claim():
    study = report_study.made(12, speed={}, limit_bytes=64 * GIB, ablations=0)
    study = replace(study, trials=tuple(t for t in study.trials if t.config.get("num_workers", 0) == 0))
    found = answer(study)
    assert not found.is_better
    tree = pages.read(report_html(study, found))
    hero = tree.by_id("answer").text
    assert "No gain" in hero
    assert "there is nothing to apply" in hero
    assert "x faster" not in hero


def test_an_inconclusive_page_offers_the_command_that_continues_and_what_is_likely(study):
    space = study.space
    family = {"precision": "precision", "num_workers": "loader", "compile": "compile"}
    dimensions = {k: replace(d, family=family.get(k, "own")) for k, d in space.dimensions.items()}
    early = cut(study, 4, space=replace(space, dimensions=dimensions))
    found = answer(early)
    assert (found.outcome.value, found.likely.config) == ("inconclusive", WINNER)
    page = report_html(early, found)
    hero, data = pages.read(page).by_id("answer").text, pages.data(page)
    assert hero.startswith("Inconclusive")
    assert "neither confirmed nor excluded" in hero
    assert (
        f"The likely configuration reads {found.likely.speedup.value:.2f}x in 1 run, not confirmed." in hero
    )
    assert "precision" in hero
    assert found.resume in hero
    assert "--pick likely" in hero
    assert "Keep your script" not in hero
    assert "nothing beats" not in page.lower()
    assert (data["status"], data["outcome"]) == ("inconclusive", "inconclusive")
    assert data["picks"]["likely"]["runs"] == found.likely.runs == 1
    assert data["commands"]["go on"] == found.resume
    assert data["unsettled"] == list(found.unsettled)


def cut(study, count, **changes):
    return replace(study, trials=study.trials[:count], **{"elapsed_s": 20.0, **changes})


def test_a_search_that_runs_shows_what_it_has(study):
    running = cut(study, 8, stopped="")
    page = report_html(running, answer(running))
    pages.read(page)
    assert pages.data(page)["status"] == "running"
    assert "Searching" in page


def test_one_run_and_none_at_all_make_a_page(study):
    for count in (1, 0):
        few = cut(study, count, stopped="interrupted", space=None)
        page = report_html(few, answer(few) if count else None)
        assert pages.read(page).all("h1")
    assert "autotune resume train-1121-1002" in page


def test_a_script_that_fails_by_itself_is_shown_with_its_last_lines(study):
    broken = next(t for t in study.trials if t.failure is not None)
    first = replace(broken, number=0, stage=Stage.BASELINE, config=Config())
    failed = replace(study, trials=(first,), stopped="no_baseline", space=None)
    hero = pages.read(report_html(failed, None)).by_id("answer")
    assert "train.py fails unmodified" in hero.text
    assert "RuntimeError: it broke" in hero.text
    assert "open" in hero.all("details")[0].attributes


def test_without_memory_and_loss_nothing_is_drawn_that_is_not_known(study):
    def bare(trial):
        if trial.measurement is None:
            return trial
        seen = replace(trial.measurement, memory=replace(trial.measurement.memory, pss=None), loss=())
        return replace(trial, outcome=seen)

    blind = replace(study, trials=tuple(map(bare, study.trials)))
    tree = pages.read(report_html(blind, answer(blind)))
    assert "No trial reported its peak memory" in tree.by_id("front").text
    assert "showed no loss" in tree.by_id("loss").text


def test_step_times_are_drawn_where_runs_kept_them(study):
    def kept(trial):
        if trial.measurement is None:
            return trial
        step_s = trial.measurement.step_time_s.value
        names = ("step_s_p05", "step_s_p25", "step_s_p50", "step_s_p75", "step_s_p95")
        extra = {n: f * step_s for n, f in zip(names, (0.8, 0.9, 1.0, 1.1, 1.4), strict=True)}
        return replace(trial, outcome=replace(trial.measurement, extra=extra))

    full = replace(study, trials=tuple(map(kept, study.trials)))
    tree = pages.read(report_html(full, answer(full)))
    assert "median" in tree.by_id("runs").text
    assert tree.by_id("steps-w-t")


def test_a_trial_that_is_still_open_is_left_out(study):
    last = replace(study.trials[-1], state=TrialState.RUNNING, outcome=None)
    open_one = replace(study, trials=(*study.trials[:-1], last), stopped="")
    assert len(pages.data(report_html(open_one, answer(open_one)))["trials"]) == len(study.trials) - 1


# -- other wishes ---------------------------------------------------------------------------------


def test_other_wishes_are_named_with_what_is_not_confirmed(study, found):
    bound = found.best.peak_bytes - 1
    again = repick(study, SelectionCriteria(max_memory_bytes=bound))
    page = report_html(study, found, repicked=again)
    hero = pages.read(page).by_id("answer").text
    assert "Selected again from stored trials; nothing was measured" in hero
    assert "autotune report train-1121-1002 --max-memory" in hero
    assert "--yaml picked.yaml" in hero
    assert pages.data(page)["wishes"]["max_memory_bytes"] == bound
    assert pages.data(page)["picks"]["best"]["config"] != dict(WINNER)


def test_searching_again_keeps_the_bound_of_the_search(study, found):
    space = load_space("quick", cwd="/project")
    reported = replace(study, spec=replace(study.spec, space=space, max_memory_bytes=64 * GIB))
    again = repick(reported, SelectionCriteria(max_memory_bytes=found.best.peak_bytes - 1))
    for repicked in (None, again):
        view = View.of(reported, found, repicked=repicked)
        message = commands(view.study, view.answer, repicked, "")["search again"]
        assert "--space quick --max-memory 65536MiB " in message


def test_a_file_that_holds_the_new_picks_is_what_is_applied(study, found):
    again = repick(study, SelectionCriteria(objective="memory"))
    page = report_html(study, found, repicked=again, yaml="small.yaml")
    assert again.answer.best.config == SAFE
    hero = pages.read(page).by_id("answer").text
    assert "autotune apply small.yaml -- python train.py --lr 1e-3" in hero
    assert "--yaml" not in hero


# -- large studies --------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_study_of_500_trials_stays_small_and_quick():
    # Building the page is what is counted, in seconds of this process: a busy machine makes it no slower.
    study = report_study.made(480)
    assert len(study.trials) >= 500
    found = answer(study)
    began = time.process_time()
    page = report_html(study, found)
    took = time.process_time() - began
    assert len(page.encode()) < 1_500_000
    assert took < 2.0
    tree = pages.read(page)
    (listed,) = [t for t in tree.all("table") if "Every trial" in t.all("caption")[0].text]
    assert len(listed.all("tr")) == len(study.trials) + 1
    tails = [d for d in tree.by_id("failures").all("details") if d.all("pre")]
    assert 1 <= len(tails) <= 31


def test_learning_rate_advice_stands_below_the_picks(study, found):
    wild = Config({"effective_batch": 128})
    message = "Learning rate: the effective batch is 4 times your script's, and this ran with your rate."
    fastest = replace(found.best, pick="fastest", config=wild, effect=Effect.TRAINING, advice=message)
    for pick, reported in ((fastest, True), (replace(fastest, advice=""), False)):
        text = pages.read(str(picks_section(View.of(study, replace(found, fastest=pick))))).text
        assert (message in text) is reported


def test_every_section_is_labelled_by_what_is_always_visible(tree):
    folded = {s.attributes["id"] for d in tree.all("details") for s in d.all("h2") if "id" in s.attributes}
    for section in tree.all("section"):
        assert section.attributes["aria-labelledby"] not in folded
