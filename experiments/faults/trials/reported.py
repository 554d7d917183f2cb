"""A trial that reports the steps of a made-up training. From one trial on it hangs, with a daemon beside it.

Arguments: the repository, the world as JSON, the number of the first trial that hangs, and how many seconds
the others last.
"""

import os
import sys
import time
from pathlib import Path

ROOT, WORLD, HANGS_FROM = sys.argv[1:4]
LASTS_S = float((*sys.argv, "0")[4])
sys.path.insert(0, ROOT)

from autotune.launch.fake import World  # noqa: E402
from autotune.model import wire  # noqa: E402 (needs the path set above)
from autotune.model.measurement import Reading  # noqa: E402
from autotune.protocol.events import Closed, Done, Hello, ReadBack, StepRow, Steps  # noqa: E402
from autotune.protocol.lines import Writer  # noqa: E402
from autotune.protocol.plan import Plan  # noqa: E402

plan = wire.loads(Plan, Path(os.environ["AUTOTUNE_PLAN"]).read_text())
writer = Writer(Path(plan.events_path), plan.nonce)
world = wire.loads(World, WORLD)
(segment,) = plan.segments
begin = time.perf_counter_ns()
writer.write(Hello(pid=os.getpid(), t_ns=begin, python=sys.version))
if segment.trial >= int(HANGS_FROM):
    if os.fork() == 0:
        os.setsid()
        while True:
            time.sleep(1)
    Path(os.environ["AUTOTUNE_PLAN"]).with_name("ready").touch()
    time.sleep(3600)
time.sleep(LASTS_S)
step_ns, samples = int(world.step_s(segment.config) * 1e9), world.samples(segment.config)
steps = max(segment.fidelity.min_steps, 60)
rows = tuple(StepRow(t_ns=begin + i * step_ns, wait_ns=0, samples=samples) for i in range(steps + 1))
writer.write(Steps(rows=rows))
writer.write(ReadBack(facts=world.facts()))
readings = tuple(Reading(knob=k, wanted=v, found=v, status="applied") for k, v in segment.config.items())
writer.write(
    Closed(
        trial=segment.trial,
        begin_ns=begin,
        end_ns=rows[-1].t_ns,
        ended="limit",
        steady="steady",
        first_step_ns=begin,
        compile_s=0.0,
        readings=readings,
    )
)
writer.write(Done(why="measured", steps=steps))
os._exit(0)
