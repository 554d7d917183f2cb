"""On a machine with several devices: do two trials at once disturb one another?

    python beside.py                       # about 3 minutes; needs two devices

resnet50 (which loads much) alone on the first device, then on two devices at once, alternating. A ratio
below 1 is what concurrency costs; a search may then rather get --concurrency 1.
"""

import threading

from common import Trials, interval, parsed, parser, summary_of, write


def main(words=None):
    options = parsed(parser(__doc__, pairs=2), words)
    devices = len(options.machine["devices"])
    if devices < 2 and options.device == "cuda":
        return write("beside", {"devices": devices}, options, note="needs two devices")
    name = (options.workloads or ["small_steps" if options.tiny else "resnet50"])[0]
    window_s = 0.5 if options.tiny else 8.0
    pairs = 1 if options.tiny else options.pairs
    ratios, runs = [], []
    with Trials(options) as one, Trials(options) as other:

        def run(trials, device, found):
            env = {"CUDA_VISIBLE_DEVICES": str(device)} if options.device == "cuda" else {}
            found[device] = summary_of(trials.workload(name, window_s=window_s, env=env))

        for _ in range(pairs):
            alone, both = {}, {}
            run(one, 0, alone)
            threads = [threading.Thread(target=run, args=(t, d, both)) for d, t in enumerate((one, other))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            runs.append({"alone": alone[0], "both": both})
            if all(reported["kind"] == "ok" for reported in (alone[0], *both.values())):
                ratios.append(both[0]["throughput"] / alone[0]["throughput"])
            print(name, ratios[-1:], flush=True)
    return write("beside", {"ratio": interval(ratios) if ratios else None, "runs": runs}, options)


if __name__ == "__main__":
    raise SystemExit(main())
