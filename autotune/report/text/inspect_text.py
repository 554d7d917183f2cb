"""Facts about one script as text and data: its parts, and every knob with its delivery. Pure.

Builds the object of `autotune inspect --json`; its fields are listed in docs/starting.md.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from autotune.knobs.declared import given_value
from autotune.knobs.frameworks import ways as spellings
from autotune.knobs.registry import builtin, needs_permission
from autotune.model.change import Change
from autotune.model.config import value_text
from autotune.model.study import SpaceRequest
from autotune.report.view.summary import number_text, plural
from autotune.space.build_space import build_space
from autotune.space.choose_delivery import way
from autotune.text.redact import redact_args

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from autotune.knobs.base import Knob
    from autotune.model.change import Spelling
    from autotune.model.config import Value
    from autotune.model.facts import Facts, LoaderFacts, RunFacts, ScriptFlag
    from autotune.model.measurement import Estimate, Measurement

_LIBRARIES: Final = (
    *("torch", "lightning", "pytorch_lightning", "transformers", "accelerate", "timm", "torchvision"),
    *("deepspeed", "ignite", "fastai", "keras", "tensorflow", "jax", "flax", "onnxruntime"),
)
"""Libraries among a script's imports, which indicate how it trains."""
_WIDTH: Final = 11
_WIDEST: Final = 56
_MOST_OPTIONS: Final = 40

NOT_VARIED: Final = "not varied"
_IF_ALLOWED: Final = "if allowed"
_LEGEND: Final = "Effect on the training: EXACT none, NUMERIC rounding only, TRAINING changed.\n"


# Knobs --------------------------------------------------------------------------------------


def every_knob() -> list[dict[str, Any]]:
    """Return all knobs in order of expected gain, with their effect and every delivery."""
    return [
        {"knob": name, "status": knob.effect.name, "how": _ways(knob, knob.spellings), "why": knob.summary}
        for name, knob in builtin().items()
    ]


def knob_rows(facts: Facts) -> list[dict[str, Any]]:
    """Return every knob: whether it can vary for this script, its value, and its delivery or the reason.

    Args:
        facts: Facts of the script. Without a run, facts that only a run shows exclude nothing.
    """
    knobs = builtin()
    tried: Mapping[str, Sequence[Value]] = {}
    refusals: Mapping[str, str] = {}
    if facts.run is not None:
        request = SpaceRequest(name="inspect", knobs=dict.fromkeys(knobs, ()))
        space, refusals = build_space(request, facts, knobs)
        tried = {name: dimension.values for name, dimension in space.dimensions.items()}
    rows: list[dict[str, Any]] = []
    for name, knob in knobs.items():
        reason = refusals.get(name) or knob.refuse(facts)
        row = _refused(name, reason) if reason is not None else _row(knob, facts)
        row["value"] = knob.own(facts)
        row["risk"] = "" if row["status"] == NOT_VARIED else knob.effect_for(facts).name
        row["raised"] = "" if row["status"] == NOT_VARIED else knob.raised(facts)
        row["values"] = [] if row["status"] == NOT_VARIED else list(tried.get(name, ()))
        row["tunable"] = row["status"] != NOT_VARIED
        rows.append(row)
    return rows


def _refused(name: str, reason: str) -> dict[str, Any]:
    return {"knob": name, "status": NOT_VARIED, "how": "", "why": reason}


def _row(knob: Knob, facts: Facts) -> dict[str, Any]:
    effect, status = knob.effect_for(facts).name, "searched"
    if needs_permission(knob):
        status = _IF_ALLOWED
    why = f"{effect}: {knob.raised(facts) or knob.summary}"
    if knob.virtual:
        return {"knob": knob.name, "status": status, "how": f"through {', '.join(knob.requires)}", "why": why}
    own = knob.own(facts)
    ways = [way(knob, value, facts) for value in knob.domain(facts) if value != own]
    usable = list(dict.fromkeys(way_text(w.spelling) for w in ways if isinstance(w, Change)))
    if ways and not usable:
        return _refused(knob.name, str(ways[0]))
    how = ", ".join(usable) or _ways(knob, spellings(knob.spellings, facts))
    return {"knob": knob.name, "status": status, "how": how, "why": why}


def way_text(spelling: Spelling) -> str:
    """Format a delivery: ``flag --batch-size``, ``in-process patch``."""
    return spelling.text if spelling.how == "patch" else f"{spelling.how} {spelling.text}"


def _ways(knob: Knob, known: Sequence[Spelling]) -> str:
    return ", ".join(way_text(s) for s in known) or f"through {', '.join(knob.requires)}"


def every_knob_text() -> str:
    """Return the screen of `autotune inspect --knobs`."""
    rows = [(row["knob"], row["status"], row["how"], row["why"]) for row in every_knob()]
    return _aligned([("KNOB", "EFFECT", "HOW", "WHAT IT SETS"), *rows])


def knobs_text(rows: Sequence[Mapping[str, Any]], columns: int = 0) -> str:
    """Return the knobs of a script: a table of those that can vary, then the reasons for the others.

    Args:
        rows: Rows of `knob_rows`.
        columns: Columns of the terminal; 0 wraps nothing.
    """
    varied = [row for row in rows if row["tunable"]]
    cells = [
        ("KNOB", "VALUE", "TRY", "EFFECT", "HOW"),
        *(
            (row["knob"], value_text(row["value"]) or "-", _tried_text(row), _effect_text(row), row["how"])
            for row in varied
        ),
    ]
    if all(row["value"] is None for row in varied):  # without a run
        cells = [(row[0], *row[3:]) for row in cells]
    text = _aligned(cells) + _LEGEND
    text += _by_reason("Why an effect is higher than usual:", varied, "raised", columns)
    return text + _by_reason("Not varied:", [row for row in rows if not row["tunable"]], "why", columns)


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [min(_WIDEST, max(len(row[i]) for row in rows)) for i in range(len(rows[0]) - 1)]
    lines = [
        "".join(f"{text:<{w}}  " for text, w in zip(row, widths, strict=False)) + row[-1] for row in rows
    ]
    return "\n".join(lines) + "\n"


def _tried_text(row: Mapping[str, Any]) -> str:
    """Format values beside the script's own, as in ``8 16 64``; a dash without any."""
    others = [value for value in row["values"] if value != row["value"]]
    return " ".join(value_text(value) for value in others) or "-"


def _effect_text(row: Mapping[str, Any]) -> str:
    return f"{row['risk']}, with --allow" if row["status"] == _IF_ALLOWED else row["risk"]


def _by_reason(title: str, rows: Sequence[Mapping[str, Any]], key: str, columns: int) -> str:
    """Return a paragraph per reason with its knobs: ``tf32, fp8: They need an NVIDIA device.``."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row[key]:
            names.setdefault(row[key], []).append(row["knob"])
    lines = [f"  {', '.join(knobs)}: {reason}" for reason, knobs in names.items()]
    width = columns if columns > _WIDEST else 10**6
    shown = [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="    ")]
    return "\n".join(["", title, *shown, ""]) if shown else ""


# The script ---------------------------------------------------------------------------------


def labelled_line(key: str, text: str) -> str:
    """Return one line of the screen above or below the table."""
    return f"{key:<{_WIDTH}}{text}\n"


def script_text(facts: Facts, title: str, args: Sequence[str], measured: Measurement | None = None) -> str:
    """Return the parts of a script, a line each; those of a run only after a run."""
    shown_args = redact_args(args)
    lines = [("script", " ".join([title, *shown_args]))]
    options = [_option_text(flag, _value_of(flag, shown_args, facts.run)) for flag in facts.script.flags]
    more = len(options) - _MOST_OPTIONS
    shown = ", ".join(options[:_MOST_OPTIONS]) + (f" and {more} more" if more > 0 else "")
    lines.append(("options", shown or "none were found in its source"))
    run = facts.run
    if run is None:
        lines.append(("framework", ", ".join(_libraries(facts)) or "none is imported by its own files"))
    else:
        lines += _run_lines(run, measured)
    return "".join(labelled_line(key, text) for key, text in lines)


def _option_text(flag: ScriptFlag, value: Value | None) -> str:
    name = next((n for n in flag.names if n.startswith("--")), flag.names[0])
    return name if value is None or flag.kind in ("switch", "off_switch", "pair") else f"{name}={value}"


def _value_of(flag: ScriptFlag, args: Sequence[str], run: RunFacts | None) -> Value | None:
    """Return the value in force, as the script's parser returned it, else by the source; None if unknown."""
    seen = None if run is None else run.options.get(flag.dest)
    return given_value(flag, args) if seen is None else seen


def _libraries(facts: Facts) -> list[str]:
    return [name for name in _LIBRARIES if name in facts.script.imports]


def _run_lines(run: RunFacts, measured: Measurement | None) -> Iterator[tuple[str, str]]:
    versions = ", ".join(f"{name} {run.versions[name]}" for name in _LIBRARIES if name in run.versions)
    owned = f"; trains through {' and '.join(run.owners)}" if run.owners else ""
    yield "framework", f"{versions or 'no PyTorch'}, Python {run.versions.get('python', '?')}{owned}"
    yield (
        "loader",
        "none was seen in training: batches come from elsewhere"
        if run.loader is None
        else _loader_text(run.loader),
    )
    model = run.model
    if model is None:
        yield "model", "none was seen in training"
    else:
        roots = f", one of {model.roots} that train" if model.roots > 1 else ""
        parameters = f"{model.parameters:,} parameters ({', '.join(model.dtypes)})"
        yield "model", f"{model.name}: {parameters}, on {model.device}{roots}"
    optimizer = run.optimizer
    if optimizer is None:
        yield "optimizer", "no step of a PyTorch optimizer was seen"
    else:
        others = f", one of {optimizer.count} that step" if optimizer.count > 1 else ""
        fused = ", fused" if optimizer.fused else ""
        yield "optimizer", f"{optimizer.name}{fused}{others}"
    yield "loss", _loss_text(run)
    batch = f", {plural(run.effective_batch, 'sample')}" if run.effective_batch else ""
    passes = number_text(run.backward_per_step, 3)
    passes = "1 backward pass" if passes in ("1", "1.00") else f"{passes} backward passes"
    yield "step", f"{passes} for an optimizer step{batch}{_own_text(run)}"
    if measured is not None:
        yield "rate", f"{_rate_text(measured.throughput)}, from a short run, not comparable"


def _loader_text(loader: LoaderFacts) -> str:
    batch = f"batches of {loader.batch_size}" if loader.batch_size else "batches made by the dataset"
    parts = [batch, plural(loader.num_workers, "worker")]
    if loader.dataset_length is not None:
        parts.append(plural(loader.dataset_length, "sample"))
    parts += ["iterable"] if loader.kind == "iterable" else []
    parts += ["shuffled"] if loader.shuffles else []
    parts += ["pinned"] if loader.pin_memory else []
    beside = f"; beside {plural(loader.beside, 'other loader')} that train" if loader.beside else ""
    return f"{loader.site}: {', '.join(parts)}{beside}"


def _loss_text(run: RunFacts) -> str:
    reduced = {"mean": "a mean over the batch", "sum": "a sum over the batch"}
    text = reduced.get(run.reduction, "how it is reduced over the batch was not seen")
    return text + (", binary cross entropy on the model's output" if run.bce_outside else "")


def _own_text(run: RunFacts) -> str:
    """Return knobs that the script already sets itself."""
    own = {
        "accumulates": run.own_accumulation,
        "autocasts": run.own_autocast,
        "scales gradients": run.own_scaler,
        "compiles": run.own_compile,
    }
    found = [what for what, is_so in own.items() if is_so]
    return f"; the script {', '.join(found)} by itself" if found else ""


def _rate_text(rate: Estimate) -> str:
    return f"{number_text(rate.value)} {rate.unit} [{number_text(rate.low)}, {number_text(rate.high)}]"


# For programs -------------------------------------------------------------------------------


def script_data(facts: Facts, args: Sequence[str], measured: Measurement | None = None) -> dict[str, Any]:
    """Return the same as an object; ``run`` is None if the script did not run or showed nothing."""
    shown_args, run = redact_args(args), facts.run
    flags = [
        {
            "names": list(flag.names),
            "kind": flag.kind,
            "default": flag.default,
            "value": _value_of(flag, shown_args, run),
            "choices": list(flag.choices),
        }
        for flag in facts.script.flags
    ]
    return {
        "args": list(shown_args),
        "imports": _libraries(facts),
        "flags": flags,
        "hazards": list(facts.script.hazards),
        "run": None if run is None else _run_data(run, measured),
    }


def _run_data(run: RunFacts, measured: Measurement | None) -> dict[str, Any]:
    loader, model, optimizer = run.loader, run.model, run.optimizer
    rate = None if measured is None else measured.throughput
    return {
        "framework": {"versions": dict(run.versions), "owners": list(run.owners)},
        "loader": None
        if loader is None
        else {
            "site": loader.site,
            "batch_size": loader.batch_size,
            "num_workers": loader.num_workers,
            "kind": loader.kind,
            "dataset_length": loader.dataset_length,
            "shuffles": loader.shuffles,
            "beside": loader.beside,
        },
        "model": None
        if model is None
        else {
            "name": model.name,
            "parameters": model.parameters,
            "dtypes": list(model.dtypes),
            "device": model.device,
            "roots": model.roots,
        },
        "optimizer": None
        if optimizer is None
        else {
            "name": optimizer.name,
            "count": optimizer.count,
            "fused": optimizer.fused,
            "closure": optimizer.closure,
        },
        "loss": {"reduction": run.reduction, "bce_on_output": run.bce_outside},
        "step": {
            "backward_per_step": run.backward_per_step,
            "effective_batch": run.effective_batch,
            "samples_source": run.samples_source,
            "own": {
                "accumulation": run.own_accumulation,
                "autocast": run.own_autocast,
                "scaler": run.own_scaler,
                "compile": run.own_compile,
            },
        },
        "throughput": None
        if rate is None
        else {"value": rate.value, "low": rate.low, "high": rate.high, "unit": rate.unit},
    }
