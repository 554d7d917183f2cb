"""What the source of a loop assigns to, again and again."""

from __future__ import annotations

import ast
from textwrap import dedent

from autotune.source.assignments import nodes_of, repeated, targets


def assigned(*texts: str) -> list[tuple[str, bool]]:
    """Targets of the parts of a stack, whose frames stand at ``HERE``; and whether they run once a batch."""
    stack: list[tuple[ast.Module, int, str]] = []
    for text in texts:
        source = dedent(text)
        line = next(n for n, words in enumerate(source.splitlines(), 1) if "HERE" in words)
        name = "f" if "def f" in source else "<module>"
        stack.append((ast.parse(source), line, name))
    return sorted(
        (target.text, part.inside)
        for part in repeated(stack)
        for node in nodes_of(part.node, without=part.without)
        for target in targets(node)
        if target.owner is not None
    )


def test_what_stands_in_the_loop_over_batches_is_reported_from_what_stands_around_it() -> None:
    text = """
    a.before = 1
    for epoch in range(9):
        a.p = epoch
        for x in loader:
            HERE()
            b.q += 1
        c.late[0].on = False
    a.after = 1
    """
    assert assigned(text) == [("a.p", False), ("b.q", True), ("c.late[0].on", False)]


def test_a_function_on_the_stack_runs_as_often_as_the_loop_that_calls_it() -> None:
    step = """
    def f(x):
        noise.level = 1
        HERE()
    """
    train = """
    def f(loader):
        for x in loader:
            HERE()
            data.n.append(x)
    """
    main = """
    cfg.once = 1
    for epoch in range(3):
        HERE()
        setattr(data, "epoch", epoch)
    """
    assert assigned(step, train, main) == [("data.epoch", False), ("data.n", True), ("noise.level", True)]


def test_without_a_loop_nothing_runs_again() -> None:
    assert assigned("a.p = 1\nHERE()\n") == []


def test_functions_that_are_defined_in_a_loop_are_left_to_those_who_call_them() -> None:
    text = """
    while True:
        def closure():
            a.p = 1
        HERE()
        x.fill_(0)
        (b.one, [b.two]) = 1, 2
    """
    assert assigned(text) == [("b.one", True), ("b.two", True), ("x", True)]


def test_methods_that_change_a_container_count_as_assignments() -> None:
    text = """
    for x in loader:
        HERE()
        a.seen.remove(x)
        b.queue.popleft()
        c.order.sort()
        d.weights.add_(1)
        e.shown.index(x)
    """
    assert assigned(text) == [(name, True) for name in ("a.seen", "b.queue", "c.order", "d.weights")]
