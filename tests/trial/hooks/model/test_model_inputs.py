"""Which dimension of the model's input is the batch, where the script makes its batches without a loader."""

from types import SimpleNamespace

import pytest

from autotune.model.change import Change, Flag, Keyword
from autotune.model.facts import OPTION, InputFacts
from autotune.model.wire import dumps, loads
from autotune.trial.hooks.model.model_inputs import Inputs

OF_BATCH = Flag(("--batch_size",))
STATE = (1, 20, 64)


def inputs(batch_size=0, changes=(), **held):
    found = Inputs(SimpleNamespace(refusals={}))
    found.expect(batch_size, changes, **held)
    return found


def requested(value, site):
    return [Change(knob="batch_size", value=value, spelling=OF_BATCH, delivered=str(value), site=site)]


def test_without_an_option_the_first_dimension_counts() -> None:
    plain = inputs()
    assert plain.called([(16, 20), STATE]) == 16
    assert plain.called([()]) == 1
    assert plain.called([(None, 4)]) == 0
    assert plain.facts(3) is None
    assert plain.observed() is None


def test_the_dimension_that_the_option_says_counts_wherever_it_stands() -> None:
    chunks = inputs(batch_size=20)
    counted = [chunks.called([(length, 20), STATE, STATE]) for length in (16, 16, 16, 9)]
    assert counted == [20, 20, 20, 20]
    assert chunks.observed() == 20
    found = chunks.facts(4)
    assert found == InputFacts(batch_size=20, tensor=0, dims=(1,), shape=(16, 20), calls_per_backward=1.0)
    assert found.counts


def test_a_smaller_last_batch_is_counted_unchanged() -> None:
    rest = inputs(batch_size=8)
    assert [rest.called([(size, 3)]) for size in (8, 8, 8, 8, 5)] == [8, 8, 8, 8, 5]
    assert rest.facts(5).dims == (0,)


def test_lengths_that_vary_are_no_part_of_the_place() -> None:
    padded = inputs(batch_size=8)
    for length in (5, 6, 7, 9):
        padded.called([(8, length)])
    assert padded.facts(4).shape == (8, 0)


def test_an_option_that_shows_nowhere_is_not_counted_by() -> None:
    other = inputs(batch_size=12)
    assert other.called([(16, 20)]) == 16
    assert other.observed() is None
    assert not other.facts(1).counts


def test_several_calls_per_backward_pass_are_no_count_of_samples() -> None:
    pair = inputs(batch_size=8)
    for _ in range(6):
        pair.called([(8, 3)])
    assert not pair.facts(3).counts
    assert pair.facts(6).counts


def passes(found, calls):
    """Backward passes that each come after so many calls."""
    for count in calls:
        for _ in range(count):
            found.called([(8, 3)])
        found.backward()
    return found.facts(len(calls))


@pytest.mark.parametrize("length", [6, 9, 12, 100])
def test_one_more_call_with_gradients_changes_nothing_however_long_the_run_is(length) -> None:
    assert passes(inputs(batch_size=8), [2, *[1] * (length - 1)]).counts
    assert passes(inputs(batch_size=8), [1] * (length - 1) + [3]).counts


@pytest.mark.parametrize("calls", [[2] * 9, [1, 0] * 4, [1, 0, 1], [1, 2] * 4, [19] * 3])
def test_passes_that_are_not_over_one_call_each_are_no_count_of_samples(calls) -> None:
    found = passes(inputs(batch_size=8), calls)
    assert not found.counts
    assert found.calls_per_backward == pytest.approx(sum(calls) / len(calls))


def test_a_size_that_many_calls_have_and_not_nearly_all_is_reported_as_that() -> None:
    short = inputs(batch_size=512)
    for size in (512, 488, 512, 488):
        short.called([(size, 8)])
    found = short.facts(4)
    assert (found.dims, found.rare_frac) == ((), 0.5)
    assert not found.counts
    assert short.observed() is None


@pytest.mark.parametrize(
    ("place", "found"),
    [
        ("input:0:1:16x20", InputFacts(batch_size=40, dims=(1,), shape=(16, 20))),
        (
            "input:2:0,2,3:32x3x32x32",
            InputFacts(batch_size=40, tensor=2, dims=(0, 2, 3), shape=(32, 3, 32, 32)),
        ),
        ("input:0:1:16x20:1", InputFacts(batch_size=40, dims=(1,), shape=(16, 20), reported_per_sample=1.0)),
        (
            "input:0:1:16x20:19.5",
            InputFacts(batch_size=40, dims=(1,), shape=(16, 20), reported_per_sample=19.5),
        ),
        ("input:0:1:16x20:some", None),
        ("train.py:12", None),
        ("input:0:2:16x20", None),
        ("input:0::", None),
        ("", None),
    ],
)
def test_a_place_is_read_as_it_was_written(place, found) -> None:
    assert InputFacts.at(place, 40) == found
    assert found is None or found.place == place


def test_what_was_seen_survives_the_wire() -> None:
    seen = InputFacts(batch_size=20, tensor=1, dims=(0, 1), shape=(20, 20), calls_per_backward=0.5)
    assert loads(InputFacts, dumps(seen)) == seen


# A run at another size


@pytest.mark.parametrize(
    ("site", "shape", "size", "words"),
    [
        ("input:0:1:16x20", (16, 40), 40, ""),
        ("input:0:1:16x20", (16, 20), 20, ""),
        ("input:0:0:20x0", (40, 33), 40, ""),
        ("input:0:0,1:20x20", (20, 40), 40, ""),
        ("input:0:0,1:20x20", (40, 40), None, "20 x 20 became 40 x 40"),
        ("input:0:1:16x20", (8, 40), None, "16 x 20 became 8 x 40"),
        ("input:0:1:16x20", (640,), None, "called with 640 instead of 16 x 20"),
    ],
)
def test_a_run_at_another_size_is_held_to_the_place(site, shape, size, words) -> None:
    other = inputs(batch_size=40, changes=requested(40, site))
    for _ in range(3):
        other.called([shape])
    assert other.expects
    assert other.observed() == size
    assert words in other._state.refusals.get("batch_size", "")
    assert bool(words) is ("batch_size" in other._state.refusals)


def test_such_a_run_counts_by_the_dimension_that_followed() -> None:
    other = inputs(batch_size=40, changes=requested(40, "input:0:0,1:20x20"))
    assert other.called([(20, 40)]) == 40
    assert other.called([(7, 40)]) == 40
    assert other.facts(2).dims == (1,)


@pytest.mark.parametrize(("reported", "size"), [(0.5, None), (2.0, None), (1.02, 40), (0.0, 40)])
def test_a_run_whose_samples_are_reported_otherwise_than_as_it_was_has_no_rate(reported, size) -> None:
    other = inputs(batch_size=40, changes=requested(40, "input:0:1:16x20:1"))
    other.reported_now = lambda: reported
    other.called([(16, 40)])
    assert other.observed() == size
    assert ("does not follow the batch" in other._state.refusals.get("batch_size", "")) is (size is None)


def test_ends_of_short_epochs_do_not_speak_against_it() -> None:
    other = inputs(batch_size=40, changes=requested(40, "input:0:1:16x20"))
    for length in (16, 16, 9, 16, 16, 9):
        other.called([(length, 40)])
    assert other.observed() == 40


def test_every_second_batch_that_ends_an_epoch_does_not_speak_against_it_either() -> None:
    other = inputs(batch_size=512, changes=requested(512, "input:0:0:100x8"))
    assert [other.called([(size, 8)]) for size in (512, 488, 512, 488)] == [512, 488, 512, 488]
    assert other.observed() == 512
    assert other.facts(4).counts, "its samples count as those of the baseline do"


def test_it_counts_by_the_argument_that_the_baseline_counted_by() -> None:
    other = inputs(batch_size=40, changes=requested(40, "input:1:0:20x3"))
    other.called([(40, 7), (40, 3)])
    assert (other.facts(1).tensor, other.facts(1).dims) == (1, (0,))
    unmoved = inputs(batch_size=40, changes=requested(40, "input:1:0:20x3"))
    unmoved.called([(40, 7), (20, 3)])
    assert not unmoved.facts(1).counts


@pytest.mark.parametrize(
    ("site", "shape", "size", "words"),
    [
        ("input:0:1:16x20", (64, 40), 40, ""),
        ("input:0:1:16x20", (64, 20), 20, ""),
        ("input:0:0,1:20x20", (40, 40), None, "20 x 20 became 40 x 40"),
        ("input:0:1:16x20", (640,), None, "called with 640 instead of 16 x 20"),
    ],
)
def test_other_sizes_are_free_where_the_user_may_have_changed_them(site, shape, size, words) -> None:
    other = inputs(batch_size=40, changes=requested(40, site), holds_rest=False)
    other.called([shape])
    assert other.observed() == size
    assert words in other._state.refusals.get("batch_size", "")
    assert bool(words) is ("batch_size" in other._state.refusals)


def test_under_apply_the_change_itself_says_what_the_option_says() -> None:
    applied = inputs(changes=requested(10, "input:0:1:16x20"))
    applied.called([(16, 10)])
    assert applied.observed() == 10


def test_a_change_of_a_loader_is_left_to_the_loader() -> None:
    keyword = Keyword("torch.utils.data.DataLoader", "batch_size")
    change = Change(knob="batch_size", value=8, spelling=keyword, site="train.py:12")
    loaded = inputs(batch_size=8, changes=[change])
    loaded.called([(8, 3)])
    assert not loaded.expects
    assert loaded.observed() is None


# In a process

MINE = """
import sys, torch
from torch import nn
wanted = [int(word.split("=")[1]) for word in sys.argv[1:]]
batch = wanted[0] if wanted else 20
rows, columns = SHAPE
model = nn.RNN(4, 8)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    out, _ = model(torch.randn(rows, columns, 4))
    opt.zero_grad()
    out.pow(2).mean().backward()
    opt.step()
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "found"), [("16, batch", 10), ("16, 20", 20), ("16 * 20 // batch, batch", None)]
)
def test_a_run_whose_input_does_not_follow_is_rejected(run, shape, found) -> None:
    text = MINE.replace("SHAPE", shape)
    own = run(text, batch=20)
    assert own.facts.samples_source == OPTION
    assert {row.samples for row in own.rows} == {20}
    half = run(text, batch=10, argv=["--batch_size=10"], changes=requested(10, own.facts.inputs.place))
    if found == 10:
        assert half.broke is None
        assert {row.samples for row in half.rows} == {10}
    else:
        assert half.broke.kind == "config_rejected"
        assert half.broke.knob == "batch_size"
        assert half.reading("batch_size").found == found


@pytest.mark.torch
@pytest.mark.slow
def test_a_length_that_the_user_changes_is_no_reason_to_reject_a_batch(run) -> None:
    text = MINE.replace("SHAPE", "wanted[1] if len(wanted) > 1 else 16, batch")
    batch = requested(10, "input:0:1:16x20x4")
    length = Change(knob="seq_len", value=64, spelling=Flag(("--seq_len",)), delivered="64")
    both = ["--batch_size=10", "--seq_len=64"]
    declared = run(text, batch=10, argv=both, changes=[*batch, length])
    assert declared.broke is None
    assert {row.samples for row in declared.rows} == {10}
    applied = run(text, argv=both, changes=batch, measure=False)
    assert applied.code == 0, applied.err
    alone = run(text, batch=10, argv=both, changes=batch)
    assert alone.broke.knob == "batch_size", "nobody but the batch's own option can have changed the length"
