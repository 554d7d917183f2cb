"""Finished studies and answers, for whatever shows, writes or applies them."""

from __future__ import annotations

from autotune.answer.answer import Answer, FrontMember, Recommendation, SearchOutcome
from autotune.loss.loss_guard import LossVerdict
from autotune.model.change import Change, Env, Flag, Keyword, Patch
from autotune.model.config import Config
from autotune.model.effect import Effect
from autotune.model.facts import Facts, HostFacts, RunFacts, ScriptFacts
from autotune.model.measurement import Estimate, Measurement, Memory
from autotune.model.study import Budget, SpaceRequest, Study, StudySpec
from autotune.model.trial import Failure, FailureKind, Fidelity, Stage, Trial, TrialState

FIDELITY = Fidelity(min_window_s=1, max_window_s=2, min_steps=5, target_width=0.05, setup_s=10, deadline_s=30)
BASE = Config()
SAFE = Config({"num_workers": 4})
BEST = Config({"num_workers": 4, "precision": "bf16", "batch_size": 64, "threads": 2})
GIB = 1024**3
REASON = "It trains 2.00 times as fast."


def rate(value: float, unit: str = "samples/s") -> Estimate:
    return Estimate(value=value, low=value * 0.98, high=value * 1.02, n=8, unit=unit)


def ratio(value: float, n: int = 6) -> Estimate:
    return Estimate(value=value, low=round(value - 0.05, 4), high=round(value + 0.05, 4), n=n, unit="ratio")


def reported(number: int, config: Config, outcome, stage: Stage = Stage.REFINE) -> Trial:
    return Trial(
        number=number, config=config, stage=stage, fidelity=FIDELITY, state=TrialState.FINISHED,
        outcome=outcome,
        seconds=10.0, finished_s=10.0 * number,
    )  # fmt: skip


def measured(number: int, config: Config, value: float, stage: Stage = Stage.REFINE) -> Trial:
    outcome = Measurement(
        throughput=rate(value),
        step_time_s=rate(32 / value, "s"),
        data_wait_frac=0.1,
        memory=Memory(pss=GIB),
        effective_batch=32.0,
    )
    return reported(number, config, outcome, stage)


def failed(number: int, config: Config, kind: FailureKind = FailureKind.OOM_HOST) -> Trial:
    return reported(number, config, Failure(kind=kind, message="4.2 GiB were requested"))


def spec(**fields) -> StudySpec:
    given = {
        "study_id": "01KAK2M7Q4ZC0V9X3T5R8W6Y1B", "label": "train-1121-1002", "script": "/project/train.py",
        "args": ("--lr", "1e-3"), "cwd": "/project", "python": "python",
        "space": SpaceRequest(name="default"),
        "budget": Budget(seconds=600.0), "out": "/project/best.yaml", "version": "0.1.0", "driver": "inline",
        **fields,
    }  # fmt: skip
    return StudySpec(**given)


def facts() -> Facts:
    host = HostFacts(
        cpus=2,
        physical_cores=2,
        memory_bytes=8 * GIB,
        python="3.11.7",
        versions={"torch": "2.13.0"},
        cpu_model="CPU X",
    )
    run = RunFacts(
        effective_batch=32,
        values={"num_workers": 0, "precision": "fp32", "batch_size": 32, "threads": 1, "compile_mode": "off"},
        versions={"torch": "2.13.0"},
    )
    return Facts(host=host, script=ScriptFacts(path="/project/train.py", sha256="ab" * 32), run=run)


def study(*, better: bool = True, **fields) -> Study:
    """Six trials, one failed; with `better` the third is twice as fast."""
    gain = 2.0 if better else 1.01
    trials = (
        measured(0, BASE, 100.0, Stage.BASELINE),
        measured(1, BASE, 100.0, Stage.BASELINE),
        measured(2, SAFE, 100.0 + 30 * (gain - 1)),
        measured(3, BEST, 100.0 * gain),
        failed(4, Config({"batch_size": 512})),
        measured(5, BEST.without("precision"), 100.0 + 60 * (gain - 1)),
    )
    given = {
        "spec": spec(), "facts": facts(), "trials": trials, "elapsed_s": 480.0, "stopped": "finished",
        "created": 1_795_000_000.0,
        "refusals": {"tf32": "TF32 exists on NVIDIA devices only, and training runs on the CPU."},
        **fields,
    }  # fmt: skip
    return Study(**given)


def pick(name: str, config: Config, speedup: Estimate, **fields) -> Recommendation:
    given = {
        "pick": name, "config": config, "trial": 3, "effect": Effect.EXACT, "speedup": speedup,
        "throughput": rate(100.0 * speedup.value), "peak_bytes": GIB,
        "loss": LossVerdict(level=0, verdict="pass"), **fields,
    }  # fmt: skip
    return Recommendation(**given)


def good_answer(**fields) -> Answer:
    verdict = LossVerdict(level=1, verdict="pass", steps=120, delay_frac_upper95=0.006, noise_frac=0.019)
    given = {
        "is_better": True, "outcome": SearchOutcome.FASTER,
        "baseline_throughput": rate(100.0), "baseline_peak_bytes": 2 * GIB,
        "safe": pick("safe", SAFE, ratio(1.3), trial=2),
        "best": pick("best", BEST, ratio(2.0), effect=Effect.NUMERIC, loss=verdict, reasons=(REASON,)),
        "fastest": None, "identical": ratio(1.0, 3),
        "front": (FrontMember(trial=3, config=BEST, throughput=200.0, peak_bytes=GIB, loss=0.5),),
        "failures": {"oom_host": 1}, "sentence": "2.00x faster.", **fields,
    }  # fmt: skip
    return Answer(**given)


def no_answer(**fields) -> Answer:
    """Nothing beats the script."""
    one = Estimate(value=1.0, low=1.0, high=1.0, n=6, unit="ratio")
    given = {
        "is_better": False, "outcome": SearchOutcome.NOTHING_FASTER, "safe": pick("safe", BASE, one, trial=0),
        "best": pick("best", BASE, one, trial=0),
        "front": (), "sentence": "Nothing is confirmed to be faster than your script.", **fields,
    }  # fmt: skip
    return good_answer(**given)


def open_answer(**fields) -> Answer:
    """An inconclusive search with a candidate that read 2.18 times as fast in three runs."""
    likely = pick(
        "likely", BEST, ratio(2.18, 2), effect=Effect.NUMERIC, runs=3, reasons=("It reads 2.18x in 3 runs.",)
    )
    given = {
        "outcome": SearchOutcome.INCONCLUSIVE, "likely": likely,
        "unsettled": ("precision=bf16 reads 2.18x in 3 runs, not confirmed.", "Not measured yet: compile."),
        "resume": "autotune resume train-1121-1002 --budget 8m", "sentence": "Inconclusive.", **fields,
    }  # fmt: skip
    return no_answer(**given)


def changes_of(config: Config) -> tuple[Change, ...]:
    """One knob by each of the four ways."""
    ways = {
        "batch_size": lambda v: Change(
            knob="batch_size", value=v, spelling=Flag(("--batch-size", "-b")), delivered=str(v)
        ),
        "num_workers": lambda v: Change(
            knob="num_workers",
            value=v,
            spelling=Keyword("torch.utils.data.DataLoader", "num_workers"),
            site="train.py:12",
        ),
        "threads": lambda v: Change(
            knob="threads", value=v, spelling=Env("OMP_NUM_THREADS"), delivered=str(v)
        ),
        "precision": lambda v: Change(knob="precision", value=v, spelling=Patch()),
    }
    return tuple(ways[knob](value) for knob, value in config.items())
