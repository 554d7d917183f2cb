"""How often does a script differ from itself on this device, with clocks and heat as they drift?

    python aa.py --pairs 10                # small_steps, resnet50: about 8 minutes; an hour with --pairs 60
    python aa.py --device cpu --tiny

Fresh processes of the unchanged script, neighbours paired in alternating order, as a confirmation pairs
them. The spread sets the smallest gain that can be claimed.
"""

import statistics

from common import Trials, interval, parsed, parser, summary_of, write

NAMES = ("small_steps", "resnet50")
PAIRS_PER_CLAIM = 5


def main(words=None):
    options = parsed(parser(__doc__, pairs=10), words)
    pairs = 1 if options.tiny else options.pairs
    window_s = 0.5 if options.tiny else 6.0
    result = {}
    with Trials(options) as trials:
        for name in options.workloads or (NAMES[:1] if options.tiny else NAMES):
            runs, ratios = [], []
            for pair in range(pairs):
                two = [summary_of(trials.workload(name, window_s=window_s, seed=pair)) for _ in range(2)]
                runs += two
                if all(run["kind"] == "ok" for run in two):
                    one, other = (run["throughput"] for run in two)
                    ratios.append(one / other if pair % 2 else other / one)
                print(name, pair, ratios[-1:] or two, flush=True)
            if not ratios:
                result[name] = {"runs": runs}
                continue
            last = len(ratios) - PAIRS_PER_CLAIM + 1
            windows = [interval(ratios[i : i + PAIRS_PER_CLAIM]) for i in range(last)]
            rates = [run["throughput"] for run in runs if run["kind"] == "ok"]
            result[name] = {
                "ratios": ratios,
                "all": interval(ratios),
                "sd_of_runs_frac": statistics.stdev(rates) / statistics.fmean(rates),
                "windows": len(windows),
                "windows_excluding_one": sum(
                    not w["low"] <= 1 <= (w["high"] or float("inf")) for w in windows
                ),
                "clocks_mhz": [run.get("extra", {}).get("sm_clock_mhz") for run in runs],
                "temperatures_c": [run.get("extra", {}).get("temperature_c") for run in runs],
            }
    return write("aa", result, options)


if __name__ == "__main__":
    raise SystemExit(main())
