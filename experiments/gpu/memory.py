"""Is the memory that a trial reports what the device really had in use?

    python memory.py                       # gpt2 resnet50 small_steps: about 3 minutes
    python memory.py --device cpu --tiny

Each workload runs once as a trial while nvidia-smi is asked beside it. What the launcher saw through NVML
should be nvidia-smi's peak; the allocator's peak should lie below it by a context and what libraries take
for themselves.
"""

import threading
import time

from common import Trials, parsed, parser, told_of, used_bytes, write

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


def one(name, trials, options):
    """Figures of one workload, and whether they agree."""
    before = used_bytes()
    with Watch() as watch:
        outcome = told_of(trials.workload(name, window_s=0.5 if options.tiny else 6.0))
    if outcome["kind"] != "ok":
        return {"failed": outcome}, False
    _, outside = trials.seen
    told = {
        "before_bytes": before,
        "allocator_bytes": outcome["allocator_bytes"],
        "allocated_bytes": outcome["extra"].get("allocated_peak_bytes"),
        "nvml_bytes": outcome["device_bytes"],
        "smi_bytes": watch.peak,
        "limit_bytes": outcome["limit_bytes"],
        "alloc_retries": outcome["extra"].get("alloc_retries"),
        "looks": len(outside.devices),
    }
    right = True
    if told["allocator_bytes"] is not None and told["nvml_bytes"] is not None:
        told["beside_the_allocator_bytes"] = told["nvml_bytes"] - told["allocator_bytes"] - (before or 0)
        right = told["allocator_bytes"] <= told["nvml_bytes"]
    if told["nvml_bytes"] is not None and watch.peak is not None:
        right = right and abs(told["nvml_bytes"] - watch.peak) <= SLACK_BYTES
    time.sleep(0.0 if options.tiny else 1.0)
    told["after_bytes"] = used_bytes()
    return told, right


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
    blind = not nothing and all(told.get("nvml_bytes") is None for told in result.values())
    note = "pynvml is not installed: only the allocator's figures are there" if blind else ""
    return write("memory", result, options, ok=None if nothing or blind else all(fine), note=note)


if __name__ == "__main__":
    raise SystemExit(main())
