"""What two clocks say of one window, what speaks against a knob, texts without places, and the table."""

import bisect
import json
import platform
import re
import struct
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RECORD = struct.Struct("<qqqq")
"""As `stopwatch/sitecustomize.py` writes it."""
KNOBS = (
    *("threads", "fused_optimizer", "precision", "num_workers", "effective_batch", "accumulation"),
    *("channels_last", "gc_control", "compile_mode"),
)
SPACE = (*KNOBS, "batch_size")
BATCHES = ("effective_batch", "accumulation")
FORMAT_FRAC = 0.5
"""Of the layers' outputs, for a format to be in use; some layers stay as they are under autocast."""
BEGIN, END = "<!-- results -->", "<!-- end of results -->"


def read_records(path):
    """(time in ns, optimizer, samples, evaluation in ns) of every step that the stopwatch saw."""
    data = path.read_bytes()
    whole = len(data) - len(data) % RECORD.size
    return list(RECORD.iter_unpack(data[:whole]))


def window(records, begin_ns, end_ns):
    """Steps, samples and seconds of the first optimizer between two moments; None where it did not step.

    Either end is the last step of that optimizer that had ended by then.
    """
    ends, samples, evaluation, total, aside_ns = [], [], [], 0, 0
    for t_ns, optimizer, count, evaluated_ns in records:
        total += count
        aside_ns += evaluated_ns
        if optimizer == 0:
            ends.append(t_ns)
            samples.append(total)
            evaluation.append(aside_ns)
    first, last = (bisect.bisect_right(ends, t_ns) - 1 for t_ns in (begin_ns, end_ns))
    if first < 0 or last <= first:
        return None
    return {
        "steps": last - first,
        "samples": samples[last] - samples[first],
        "seconds": (ends[last] - ends[first]) / 1e9,
        "evaluation_s": (evaluation[last] - evaluation[first]) / 1e9,
    }


def compared(seen, rows, throughput, *, counts_evaluation):
    """How far our own figures of a window are from the stopwatch's.

    Args:
        seen: From `window`.
        rows: (samples) of every step that we counted in the window.
        throughput: (value, unit) that was published.
        counts_evaluation: Evaluation is a part of the published figure.
    """
    value, unit = throughput
    own_samples = sum(rows)
    if unit == "samples/s" and not seen["samples"] and own_samples:
        # No loader: the stopwatch has steps alone, so ours are turned into steps by our own count.
        value, unit = value * len(rows) / own_samples, "steps/s"
    reported = seen["samples"] if unit == "samples/s" else seen["steps"]
    seconds = seen["seconds"] - (0.0 if counts_evaluation else seen["evaluation_s"])
    rate = reported / seconds if seconds > 0 else 0.0
    return {
        "unit": unit,
        "published": round(value, 4),
        "stopwatch": round(rate, 4),
        "error_frac": round(value / rate - 1, 6) if rate else None,
        "steps": len(rows),
        "steps_off": len(rows) - seen["steps"],
        "samples": own_samples,
        "samples_off": own_samples - seen["samples"] if seen["samples"] or not own_samples else None,
        "evaluation_s": round(seen["evaluation_s"], 3),
        "seconds": round(seen["seconds"], 3),
    }


def per_step(records):
    """Median samples per step of the first optimizer, over what the stopwatch saw; 0 without loaders."""
    counts, pending = [], 0
    for _, optimizer, count, _ in records:
        pending += count
        if optimizer == 0:
            counts.append(pending)
            pending = 0
    # The first step holds what was drawn ahead, so it is no step like the others.
    counts = sorted(counts[1:])
    return counts[len(counts) // 2] if counts else 0


def contradiction(knob, value, seen, before):
    """What the stopwatch saw that speaks against a knob being on; empty where nothing does.

    Args:
        knob, value: What was requested.
        seen: State of the run with the knob: the stopwatch's last look, and ``per_step``.
        before: The same of the baseline.
    """
    if not seen:
        return ""
    formats = seen.get("formats") or {}
    total = sum(formats.values())
    ratio = seen["per_step"] / before["per_step"] if before and before.get("per_step") else 0.0
    # Each is checked for its own knob alone: values are of different kinds.
    fine = {
        "threads": lambda: seen.get("threads", value) == value,
        "fused_optimizer": lambda: all(seen.get("fused", [True])),
        "num_workers": lambda: seen.get("workers", value) >= value,
        "gc_control": lambda: value != "freeze" or seen.get("frozen", 1) > 0,
        "compile_mode": lambda: seen.get("graphs", 1) > 0,
        "precision": lambda: not total or formats.get("bfloat16", 0) >= FORMAT_FRAC * total,
        "effective_batch": lambda: not ratio or abs(ratio - 2) < 0.1,
        "accumulation": lambda: not ratio or abs(ratio - 1) < 0.05,
    }
    if knob not in fine or fine[knob]():
        return ""
    reported = {
        "threads": f"{seen.get('threads')} threads",
        "fused_optimizer": f"groups fused: {seen.get('fused')}",
        "num_workers": f"{seen.get('workers')} processes",
        "gc_control": f"{seen.get('frozen')} objects frozen",
        "compile_mode": "no graph was compiled",
        "precision": f"layers give {formats}",
    }
    return reported.get(knob, f"{seen['per_step']} samples per step, {before.get('per_step')} before")


def scrubbed(text, places=()):
    """A text without folders, addresses and the name of this machine; file names stay."""
    text = re.sub(r"\b[a-z+]+://\S+", "<address>", str(text))
    folders = {*map(str, places), str(HERE.parents[1]), tempfile.gettempdir(), str(Path.home())}
    for folder in sorted(folders - {"/"}, key=len, reverse=True):
        text = text.replace(folder + "/", "").replace(folder, "")
    text = re.sub(r"(?<![\w.])/(?:[\w.@+~-]+/)+", "", text)
    node = platform.node()
    return re.sub(rf"\b{re.escape(node)}\b", "<machine>", text) if node else text


def scrubbed_data(data, places=()):
    """The same for everything in a JSON object, keys left as they are."""
    if isinstance(data, str):
        return scrubbed(data, places)
    if isinstance(data, dict):
        return {key: scrubbed_data(value, places) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [scrubbed_data(value, places) for value in data]
    return data


# Results --------------------------------------------------------------------------------------


def results_path(when):
    return HERE / "results" / f"{when}.jsonl"


def read_results(when):
    """(name, what, knob) -> line; the last one of its kind counts."""
    path = results_path(when)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = {}
    for text in lines:
        line = json.loads(text)
        found[line["name"], line["what"], line.get("knob", "")] = line
    return found


def counted(found, name):
    """Names of knobs by outcome, for one candidate."""
    outcomes = {}
    for (owner, what, knob), line in found.items():
        if owner == name and what == "knob":
            outcomes.setdefault(line["outcome"].partition(":")[0], []).append(knob)
    return outcomes


def table(candidates, found):
    """One row per candidate that was tried, as Markdown."""
    lines = [
        "| Package | Entry | As it is | Steps, samples off | Rate off | Applied | Refused | Other |",
        "|---|---|---|---|---|---|---|---|",
    ]
    tried = [c for c in candidates if (c.name, "install", "") in found]
    lines += [_row(candidate, found) for candidate in tried]
    return "\n".join(lines)


def _row(candidate, found):
    name = candidate.name
    package = f"{candidate.package} {candidate.version}"
    outcomes = counted(found, name)
    baseline = found.get((name, "baseline", ""))
    errors = ("", "")
    stopped = next(
        (
            f"{what} failed: {found[name, what, '']['reason']}"
            for what in ("install", "data", "inspect")
            if not found.get((name, what, ""), {"ok": True})["ok"]
        ),
        "",
    )
    as_it_is = stopped or "not tried"
    if baseline is not None:
        as_it_is = baseline["outcome"] + (f": {baseline['reason']}" if baseline["reason"] else "")
        clock = baseline.get("clock")
        if clock is not None:
            off = f"{clock['steps_off']} of {clock['steps']}"
            if clock["samples_off"] is not None and clock["samples"]:
                off += f", {clock['samples_off']} of {clock['samples']}"
            rate = "" if clock["error_frac"] is None else f"{100 * clock['error_frac']:+.2f} %"
            errors = (off, rate)
    others = [
        f"{knob}: {found[name, 'knob', knob]['outcome']}"
        for outcome, knobs in outcomes.items()
        if outcome not in ("applied", "refused")
        for knob in knobs
    ]
    cells = (
        *(package, f"`{candidate.entry_text}`", as_it_is, *errors),
        *(", ".join(outcomes.get("applied", ())), ", ".join(outcomes.get("refused", ()))),
        "; ".join(others),
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def with_tables(page, tables):
    """The README with what lies between its two marks replaced."""
    before, rest = page.split(BEGIN, 1)
    _, after = rest.split(END, 1)
    parts = [f"### {title}\n\n{text}" for title, text in tables if text]
    body = "".join(f"{part}\n\n" for part in parts)
    return f"{before}{BEGIN}\n\n{body}{END}{after}"
