"""`num_workers`: the contract, the facts that refuse it, and what is its own."""

from dataclasses import replace

import pytest
from knob_facts import loader, run

from autotune.knobs.loader.num_workers import NumWorkers
from autotune.model.effect import Effect
from autotune.model.facts import FetchState
from autotune.testing.knobs import CPU_HOST, KnobContract, facts

KNOB = NumWorkers()
DRAWS = FetchState(what="your dataset draws from its own generator (rng) at data.py:31", sure=True)


class TestNumWorkers(KnobContract):
    knob = KNOB


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (facts(run=run(loader=None)), "No training DataLoader"),
        (facts(run=loader(kind="iterable")), "repeat all of it"),
        (facts(run=loader(cuda_tensors=True)), "workers cannot share"),
        (facts(run=loader(shared_handle="ZipFile")), "open ZipFile"),
        (facts(run=loader(shared_handle="ThreadPool")), "running ThreadPool, whose threads a forked worker"),
        (facts(run=loader(changed="inside")), "changes the dataset inside a pass"),
        (
            facts(run=loader(changed="inside", changed_at="noise.p (a.py:5)")),
            "changes noise.p (a.py:5) inside",
        ),
        (
            facts(run=loader(fetch_state=DRAWS)),
            "Your dataset draws from its own generator (rng) at data.py:31",
        ),
        (facts(run=loader(fetch_state=replace(DRAWS, by="sampler"))), "requests two"),
        (facts(run=loader(fetch_state=replace(DRAWS, by="indices"))), "workers draw ahead of the loop"),
    ],
)
def test_the_fact_refuses_the_knob_in_words(given, words) -> None:
    reason = KNOB.refuse(given)
    assert reason is not None
    assert words in reason


def test_without_such_a_fact_the_knob_is_not_refused() -> None:
    assert KNOB.refuse(facts()) is None
    assert KNOB.refuse(facts(run=loader(shared_handle="ZipFile", num_workers=2))) is None


def test_a_loader_that_computes_gets_workers_up_to_the_cores_and_a_bit() -> None:
    assert KNOB.domain(facts()) == (0, 1, 2, 4, 8)


def test_a_loader_that_waits_gets_workers_far_above_the_cores() -> None:
    two_cores = replace(CPU_HOST, cpus=2, physical_cores=2)
    assert KNOB.domain(facts(host=two_cores, run=loader(fetch_cpu_frac=0.1))) == (
        0,
        1,
        2,
        4,
        8,
        16,
        32,
    )
    assert KNOB.domain(facts(host=two_cores)) == (0, 1, 2, 4)


def test_workers_of_a_loader_that_waits_are_bounded_by_memory() -> None:
    small = replace(CPU_HOST, memory_bytes=2 << 30)
    assert max(KNOB.domain(facts(host=small, run=loader(fetch_cpu_frac=0.1)))) == 4


@pytest.mark.parametrize(
    ("wanted", "plain"), [("cores_per_gpu", 8), ("x2", None), (64, 64), (-1, None), (2.0, 2), (True, None)]
)
def test_names_of_worker_counts(wanted, plain) -> None:
    assert KNOB.resolve(wanted, facts(run=loader(batch_size=32))) == (0 if wanted == "x2" else plain)


@pytest.mark.parametrize(
    ("given", "effect"),
    [
        (facts(), Effect.EXACT),
        (facts(run=loader(random=True)), Effect.NUMERIC),
        (facts(run=loader(eager_order=True)), Effect.NUMERIC),
    ],
)
def test_facts_decide_how_far_it_reaches(given, effect) -> None:
    assert KNOB.effect_for(given) is effect


@pytest.mark.parametrize(
    ("held", "workers", "effect"),
    [
        (replace(DRAWS, sure=False), 0, Effect.TRAINING),
        (DRAWS, 2, Effect.TRAINING),
        (replace(DRAWS, apart=True), 2, Effect.NUMERIC),
        (replace(DRAWS, apart=True), 0, Effect.NUMERIC),
    ],
)
def test_state_that_each_worker_copies_is_another_training_unless_workers_seed_it(
    held, workers, effect
) -> None:
    given = facts(run=loader(fetch_state=held, num_workers=workers))
    assert KNOB.refuse(given) is None
    assert KNOB.effect_for(given) is effect
    assert KNOB.changes_rng_streams(given)
    assert ("data.py:31" in KNOB.raised(given)) == (effect is Effect.TRAINING)


STREAM = {"kind": "iterable", "shards": True}


def test_a_stream_that_workers_do_not_share_out_whole_is_refused() -> None:
    assert "1000 where two" in str(KNOB.refuse(facts(run=loader(**STREAM, shares=(1001, 500, 500)))))
    assert KNOB.refuse(facts(run=loader(**STREAM, shares=(1001, 501, 500)))) is None


@pytest.mark.parametrize(
    ("shares", "length", "counts"),
    [
        ((), None, (0, 1, 2, 4, 8)),
        ((), 800, (0, 1)),  # 25 batches of 32: rests of 2, 4 and 8 workers make 26, 28 and 32
        ((800, 400, 400), None, (0, 1)),
        ((800, 416, 384), None, (0, 1, 2)),
        ((1 << 20, 1 << 19, 1 << 19), None, (0, 1, 2, 4, 8)),
        ((32 * 1000 + 8, 16008, 16000), None, (0, 1, 2, 4, 8)),
    ],
)
def test_workers_that_would_make_more_steps_of_a_pass_are_not_tried(shares, length, counts) -> None:
    given = facts(run=loader(**STREAM, batch_size=32, shares=shares, dataset_length=length))
    assert KNOB.domain(given) == counts
    assert [KNOB.resolve(count, given) for count in (1, 2)] == [1, 2 if 2 in counts else None]


def test_several_processes_share_the_cores_out_to_their_workers() -> None:
    assert max(KNOB.domain(facts())) == 8
    assert max(KNOB.domain(facts(run=run(ranks=4)))) == 4
