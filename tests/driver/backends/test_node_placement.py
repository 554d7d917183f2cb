"""The nodes of a search: pairs on one, screening on equal ones that run the unchanged script as fast."""

from __future__ import annotations

from autotune.driver.backends.node_placement import LOSS_S, ClusterNode, NodePlacement


def node(
    name: str, *, slots: int = 1, hardware: str = "1 GPUs A100, 8 CPUs", is_own: bool = False
) -> ClusterNode:
    return ClusterNode(id=name, name=name, hardware=hardware, slots=slots, is_own=is_own)


class Cluster:
    """Nodes of a test; `living` may change."""

    def __init__(self, *nodes: ClusterNode, limit: int = 0) -> None:
        self.living = list(nodes)
        self.now_s = 0.0
        self.placement = NodePlacement(lambda: self.living, limit=limit, now_s=lambda: self.now_s)
        self.first = self.placement.refresh()

    def taken(self) -> str:
        """Return the name of the node that the next trial gets; empty if there is none."""
        found = self.placement.room()
        if found is not None:
            self.placement.begins(found)
        return "" if found is None else found.name


def test_a_search_of_one_trial_at_a_time_stays_on_the_node_of_its_driver() -> None:
    cluster = Cluster(node("a"), node("b", is_own=True), limit=1)
    assert cluster.taken() == "b"
    assert cluster.taken() == ""
    assert cluster.placement.unverified() is None
    cluster.placement.ends(cluster.living[1])
    assert cluster.taken() == "b"


def test_nodes_of_other_hardware_are_left_out_and_named() -> None:
    cluster = Cluster(node("a"), node("b"), node("c", hardware="1 GPUs H100, 8 CPUs", is_own=True))
    assert cluster.placement.most == 2
    assert cluster.placement.home is not None
    assert cluster.placement.home.name in ("a", "b")
    assert cluster.first.endswith("(1 GPUs A100, 8 CPUs); 1 other node is of other hardware and not used")


def test_a_further_node_runs_the_unchanged_script_before_anything_else() -> None:
    cluster = Cluster(node("a", is_own=True), node("b"))
    assert cluster.placement.unverified() is None, "the first node is free"
    assert cluster.taken() == "a"
    assert cluster.taken() == "", "b is not verified"
    further = cluster.placement.unverified()
    assert further is not None
    cluster.placement.begins(further)
    assert cluster.placement.unverified() is None, "its reference runs"
    assert cluster.placement.judge(further, 96.0, 100.0) == ""
    cluster.placement.ends(further)
    assert cluster.taken() == "b"


def test_a_node_is_refused_where_the_script_is_slower_faster_or_fails() -> None:
    for read, reason in (
        (80.0, "b is not used: your script runs 0.80 times as fast as on a"),
        (125.0, "b is not used: your script runs 1.25 times as fast as on a"),
        (None, "b is not used: your script fails there"),
    ):
        cluster = Cluster(node("a", is_own=True), node("b"))
        assert cluster.taken() == "a"
        assert cluster.placement.judge(cluster.living[1], read, 100.0) == reason
        assert cluster.taken() == ""
        assert cluster.placement.unverified() is None


def test_no_more_trials_run_than_were_requested() -> None:
    cluster = Cluster(node("a", slots=4, is_own=True), node("b", slots=4), limit=5)
    assert cluster.placement.most == 5
    assert [cluster.taken() for _ in range(5)] == ["a", "a", "a", "a", ""]
    further = cluster.placement.unverified()
    assert further is not None
    cluster.placement.begins(further)
    cluster.placement.judge(further, 100.0, 100.0)
    assert cluster.taken() == "", "five run"


def test_a_lost_first_node_is_replaced_by_an_equal_one_or_not_at_all() -> None:
    a, b, other = node("a", is_own=True), node("b"), node("c", hardware="8 CPUs")
    cluster = Cluster(a, b)
    cluster.living = [b]
    assert cluster.placement.refresh() == "a is lost; trials run on b"
    assert cluster.taken() == "b"
    cluster.living = [other]
    assert cluster.placement.refresh() == ""
    assert cluster.taken() == ""
    cluster.living = [other, node("b, again")]
    assert cluster.placement.refresh() == "b is lost; trials run on b, again"
    assert cluster.taken() == "b, again"


def test_a_node_that_lost_a_trial_gets_the_next_one_only_after_it_is_known_to_be_alive() -> None:
    """Ray lists a dead node as alive for some seconds, and a trial that is placed there never starts."""
    cluster = Cluster(node("a", is_own=True), limit=1)
    assert cluster.taken() == "a"
    cluster.placement.ends(cluster.living[0])
    cluster.placement.loses(cluster.living[0])
    cluster.now_s = LOSS_S - 1.0
    assert (cluster.placement.refresh(), cluster.taken()) == ("", "")
    cluster.now_s = LOSS_S
    assert (cluster.placement.refresh(), cluster.taken()) == ("", "a")


def test_a_refused_node_does_not_replace_the_first_one() -> None:
    cluster = Cluster(node("a", is_own=True), node("b"))
    cluster.placement.judge(cluster.living[1], 50.0, 100.0)
    cluster.living = cluster.living[1:]
    assert cluster.placement.refresh() == ""
    assert cluster.taken() == ""


def test_a_cluster_without_a_fitting_node_has_no_place() -> None:
    cluster = Cluster()
    assert (cluster.placement.home, cluster.taken(), cluster.placement.most) == (None, "", 1)
    cluster.living = [node("a")]
    assert cluster.placement.refresh() == ""
    assert cluster.taken() == "a"
