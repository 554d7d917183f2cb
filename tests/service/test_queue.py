"""Who starts next: priority, fair share, quotas, preemption; and why the others wait."""

from hypothesis import given
from hypothesis import strategies as st

from autotune.service.queue import Limits, Waiting, decide, ordered


def waiting(number, *, project="a", user="ann", priority=50, gpus=0, preemptible=False):
    return Waiting(
        id=f"s{number:02d}",
        project=project,
        user=user,
        priority=priority,
        created_s=float(number),
        gpus=gpus,
        is_preemptible=preemptible,
    )


def ids(rows):
    return [row.id for row in rows]


def test_the_oldest_comes_first_among_equals():
    assert ids(ordered([waiting(2), waiting(1), waiting(3)], {}, {})) == ["s01", "s02", "s03"]


def test_priority_comes_before_everything_else():
    assert ids(ordered([waiting(1), waiting(2, priority=90)], {}, {})) == ["s02", "s01"]


def test_projects_that_used_less_of_their_share_come_first():
    rows = [waiting(1, project="a"), waiting(2, project="b")]
    used = {("a", "ann"): 7200.0, ("b", "bob"): 5400.0}
    assert ids(ordered(rows, used, {})) == ["s02", "s01"]
    assert ids(ordered(rows, used, {"a": Limits(weight=2.0), "b": Limits()})) == ["s01", "s02"]


def test_projects_alternate_however_many_one_of_them_submits():
    rows = [waiting(n, project="a") for n in range(4)] + [waiting(9, project="b")]
    assert ids(ordered(rows, {}, {}))[:2] == ["s00", "s09"]


def test_users_of_a_project_alternate():
    rows = [waiting(0), waiting(1), waiting(2, user="bob")]
    assert ids(ordered(rows, {}, {})) == ["s00", "s02", "s01"]


def test_what_fits_starts_and_the_rest_waits_with_a_reason():
    found = decide([waiting(1), waiting(2), waiting(3)], [waiting(0)], {}, {}, 2)
    assert found.start == ("s01",)
    assert found.reasons["s02"] == "2 of 2 slots in use"
    assert found.reasons["s03"] == "1 search ahead; 2 of 2 slots in use"
    assert found.positions == {"s02": 1, "s03": 2}


def test_a_large_search_is_not_overtaken_for_ever_by_small_ones():
    found = decide([waiting(1, gpus=4), waiting(2, gpus=1)], [waiting(0, gpus=2)], {}, {}, 4)
    assert found.start == ()
    assert found.reasons["s01"] == "2 of 4 slots in use"


def test_what_can_never_fit_is_reported_at_once_and_holds_up_nothing():
    found = decide([waiting(1, gpus=8), waiting(2, gpus=1)], [], {}, {}, 4)
    assert found.start == ("s02",)
    assert found.reasons["s01"] == "it needs 8 slots, and the service has 4"


def test_quotas_of_projects_and_users_hold_back_only_their_own():
    limits = {"a": Limits(max_running=1), "b": Limits(max_running_per_user=1), "c": Limits(max_gpus=1)}
    running = [waiting(0, project="a"), waiting(1, project="b", user="bob"), waiting(2, project="c", gpus=1)]
    queued = [
        waiting(3, project="a", user="eve"),
        waiting(4, project="b", user="bob"),
        waiting(5, project="b", user="eve"),
        waiting(6, project="c", gpus=1),
    ]
    found = decide(queued, running, {}, limits, 10)
    assert found.start == ("s05",)
    assert "project a is at its quota of 1 running searches" in found.reasons["s03"]
    assert "bob is at the quota of 1 running searches per user" in found.reasons["s04"]
    assert "project c is at its quota of 1 GPUs" in found.reasons["s06"]


def test_a_quota_of_slot_hours_holds_until_the_day_has_passed():
    limits = {"a": Limits(max_slot_s_per_day=3600.0)}
    found = decide([waiting(1)], [], {("a", "ann"): 3600.0}, limits, 10)
    assert found.start == ()
    assert "has used its 1.0 slot-hours of 24 h" in found.reasons["s01"]


def test_preemptible_searches_of_lower_priority_make_room():
    running = [waiting(0, priority=10, preemptible=True), waiting(1, priority=10)]
    found = decide([waiting(2, priority=60)], running, {}, {}, 2)
    assert found.preempt == ("s00",)
    assert "1 preemptible searches are being stopped for it" in found.reasons["s02"]
    assert decide([waiting(2, priority=10)], running, {}, {}, 2).preempt == (), (
        "equal priority preempts nothing"
    )


def test_nothing_is_preempted_where_it_would_not_be_enough():
    running = [waiting(0, priority=10, gpus=1, preemptible=True), waiting(1, gpus=3)]
    assert decide([waiting(2, priority=60, gpus=4)], running, {}, {}, 4).preempt == ()


rows = st.lists(
    st.builds(
        waiting,
        st.integers(0, 60),
        project=st.sampled_from("abc"),
        user=st.sampled_from(["ann", "bob"]),
        priority=st.integers(0, 3),
        gpus=st.integers(0, 4),
        preemptible=st.booleans(),
    ),
    unique_by=lambda one: one.id,
    max_size=12,
)


@given(rows, st.integers(1, 6), st.integers(0, 12))
def test_capacity_is_never_exceeded_and_every_queued_search_is_accounted_for(found, capacity, count):
    queued, rest = found[:count], found[count:]
    running = []
    for one in rest:
        if sum(other.slots for other in running) + one.slots <= capacity:
            running.append(one)
    decision = decide(queued, running, {}, {}, capacity)
    by_id = {one.id: one for one in queued}
    used = sum(one.slots for one in running) + sum(by_id[name].slots for name in decision.start)
    assert used <= capacity
    assert {*decision.start, *decision.reasons} == {one.id for one in queued}
    assert not {*decision.start} & {*decision.reasons}
    assert {*decision.preempt} <= {one.id for one in running if one.is_preemptible}
