"""Is the memory that a trial reports what the device really had in use?

    python memory.py                       # gpt2 resnet50 small_steps: about 3 minutes
    python memory.py --device cpu --tiny

Each workload runs once as a trial while nvidia-smi is queried beside it. What the launcher saw rise through
NVML should be what nvidia-smi saw rise; the allocator's peak should lie below it by a context and what
libraries take for themselves. Rises are compared, because the two count otherwise: NVML's figure holds what
the driver keeps for itself, nvidia-smi's does not.
"""

import threading
import time

from common import Trials, nvml_bytes, parsed, parser, summary_of, used_bytes, write

NAMES = ("gpt2", "resnet50", "small_steps")
SLACK_BYTES = 256 * 2**20


class Watch:
    """nvidia-smi, twice a second."""

    def __init__(self):
        self.peak = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self):
        while not self._over.wait(0.5):
            now = used_bytes()
            if now is not None:
                self.peak = max(now, self.peak or 0)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()


def rises(reported):
    """What the trial took, as NVML and as nvidia-smi saw it; None where one of two figures is missing."""
    nvml = risen(reported["nvml_bytes"], reported["nvml_before_bytes"])
    return {
        "nvml_rise_bytes": nvml,
        "smi_rise_bytes": risen(reported["smi_bytes"], reported["before_bytes"]),
        "beside_the_allocator_bytes": risen(nvml, reported["allocator_bytes"]),
    }


def risen(after, before):
    return None if after is None or before is None else after - before


def holds(reported):
    """NVML and nvidia-smi agree, and the allocator has no more than they saw; what is missing is no fault."""
    nvml, smi, beside = (
        reported[k] for k in ("nvml_rise_bytes", "smi_rise_bytes", "beside_the_allocator_bytes")
    )
    agree = nvml is None or smi is None or abs(nvml - smi) <= SLACK_BYTES
    return agree and (beside is None or beside >= 0)


def one(name, trials, options):
    """Figures of one workload, and whether they agree."""
    before, nvml_before = used_bytes(), nvml_bytes()
    with Watch() as watch:
        outcome = summary_of(trials.workload(name, window_s=0.5 if options.tiny else 6.0))
    if outcome["kind"] != "ok":
        return {"failed": outcome}, False
    _, outside = trials.seen
    reported = {
        "before_bytes": before,
        "nvml_before_bytes": nvml_before,
        "allocator_bytes": outcome["allocator_bytes"],
        "allocated_bytes": outcome["extra"].get("allocated_peak_bytes"),
        "nvml_bytes": outcome["device_bytes"],
        "smi_bytes": watch.peak,
        "limit_bytes": outcome["limit_bytes"],
        "alloc_retries": outcome["extra"].get("alloc_retries"),
        "looks": len(outside.devices),
    }
    reported.update(rises(reported))
    time.sleep(0.0 if options.tiny else 1.0)
    reported["after_bytes"] = used_bytes()
    return reported, holds(reported)


def main(words=None):
    options = parsed(parser(__doc__), words)
    names = options.workloads or (NAMES[2:] if options.tiny else NAMES)
    result, fine = {}, []
    with Trials(options) as trials:
        for name in names:
            result[name], right = one(name, trials, options)
            fine.append(right)
            print(name, result[name], flush=True)
    nothing = options.device == "cpu"
    blind = not nothing and all(reported.get("nvml_bytes") is None for reported in result.values())
    note = "pynvml is not installed: only the allocator's figures are there" if blind else ""
    return write("memory", result, options, ok=None if nothing or blind else all(fine), note=note)


if __name__ == "__main__":
    raise SystemExit(main())
