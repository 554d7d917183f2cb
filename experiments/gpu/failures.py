"""Do failures of the device get their names, and is it free and whole for the next trial?

    python failures.py                     # about 4 minutes
    python failures.py --device cpu --tiny

Five times in a row a batch that cannot fit; then an assert on the device, which poisons its context; then
a process that is killed in the middle of training with 8 loader workers. After each, the time until the
device's memory is back; at the end one ordinary trial.
"""

import time

from common import WORKLOADS, Trials, parsed, parser, summary_of, used_bytes, write

SLACK_BYTES = 64 * 2**20
WAIT_S = 15.0

PRELUDE = """
import os, signal, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
device = "cuda" if torch.cuda.is_available() else "cpu"
"""
LOOP = """
model = nn.Sequential(nn.Embedding(100, 64), nn.Flatten(), nn.Linear(64 * 4, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randint(0, 100, (4096, 4)), torch.randint(0, 10, (4096,)))
loader = DataLoader(data, batch_size=32, num_workers=WORKERS, pin_memory=device == "cuda")
steps = 0
while True:
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        if steps == 20:
            BREAK
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        steps += 1
"""
ASSERT = "x = x + 10_000  # no such row of the embedding"
FAKED = "raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')"
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def until_free(before):
    """Seconds until no more memory is in use than before; None if unreported, or if it stays in use."""
    began = time.monotonic()
    while before is not None and time.monotonic() - began < WAIT_S:
        now = used_bytes()
        if now is None:
            return None
        if now <= before + SLACK_BYTES:
            return time.monotonic() - began
        time.sleep(0.2)
    return None


def main(words=None):
    options = parsed(parser(__doc__, ooms=5), words)
    on_device = options.device == "cuda"
    result = {"oom": []}
    with Trials(options) as trials:

        def script(name, break_, workers=0):
            path = trials.folder / f"{name}.py"
            path.write_text(PRELUDE + LOOP.replace("WORKERS", str(workers)).replace("BREAK", break_))
            return path

        def broken(path, args=()):
            before = used_bytes()
            began = time.monotonic()
            outcome = summary_of(trials.run(path, args, window_s=600.0, setup_s=120.0))
            reported = {**outcome, "seconds": time.monotonic() - began, "before_bytes": before}
            reported["free_after_s"] = until_free(before)
            print(path.stem, reported["kind"], reported.get("free_after_s"), flush=True)
            return reported

        for _ in range(2 if options.tiny else options.ooms):
            if on_device and not options.tiny:
                result["oom"].append(broken(WORKLOADS / "gpt2.py", ["--batch-size", 2048]))
            else:
                result["oom"].append(broken(script("faked_oom", FAKED)))
        result["assert"] = broken(script("assert", ASSERT))
        result["killed"] = broken(script("killed", KILL, workers=0 if options.tiny else 8))
        result["next"] = summary_of(trials.workload("small_steps", window_s=0.5 if options.tiny else 3.0))
    named = all(run["kind"] == "oom_cuda" for run in result["oom"])
    whole = result["next"]["kind"] == "ok"
    free = all(
        run["free_after_s"] is not None
        for run in (*result["oom"], result["assert"], result["killed"])
        if run["before_bytes"] is not None
    )
    ok = named and whole and free and (not on_device or result["assert"]["kind"] == "cuda_fatal")
    return write("failures", result, options, ok=ok)


if __name__ == "__main__":
    raise SystemExit(main())
