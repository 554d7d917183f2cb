"""What does a cold compile cost, and is the next trial of the same configuration warm?

    python caches.py                       # small_steps and gpt2, three modes each: about 12 minutes
    python caches.py --device cpu --tiny

Each mode twice in fresh processes with one cache key, as two trials of a search: the first publishes its
caches, the second starts from a copy of them in another folder.
"""

import json

from common import Trials, parsed, parser, patch, summary_of, write

NAMES = ("small_steps", "gpt2")
MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")
WARM_SHARE = 0.5


def kernels(trials, key):
    """Triton kernels in the published cache, and how many of their notes lead to files that are there."""
    folder = trials.folder / "cache" / key / "triton"
    groups = list(folder.glob("*/__grp__*.json"))
    return {"kernels": len(groups), "published": (trials.folder / "cache" / key).is_dir()}


def main(words=None):
    options = parsed(parser(__doc__), words)
    names = options.workloads or (NAMES[:1] if options.tiny else NAMES)
    modes = MODES[:1] if options.tiny else MODES
    result, fine = {}, []
    with Trials(options) as trials:
        for name in names:
            for mode in modes:
                key = f"{name}-{mode}"
                reported = {}
                for turn in ("cold", "warm"):
                    outcome = trials.workload(
                        name,
                        [patch("compile_mode", mode)],
                        window_s=0.5 if options.tiny else 4.0,
                        key=key,
                        setup_s=900.0,
                    )
                    reported[turn] = summary_of(outcome)
                    if turn == "cold":
                        reported.update(kernels(trials, key))
                result[key] = reported
                both = reported["cold"]["kind"] == reported["warm"]["kind"] == "ok"
                fine.append(
                    both and reported["warm"]["compile_s"] <= WARM_SHARE * reported["cold"]["compile_s"]
                )
                seconds = {turn: reported[turn].get("compile_s") for turn in ("cold", "warm")}
                print(key, json.dumps(seconds), reported["kernels"], flush=True)
    note = f"a warm compile takes at most {WARM_SHARE:.0%} of a cold one"
    return write("caches", result, options, ok=all(fine), note=note)


if __name__ == "__main__":
    raise SystemExit(main())
