"""Reduction of the loss over the batch, and whether BCE is applied to the model's output.

The functional losses are replaced during detection. Their results are then searched in the graph of the value
that `backward` is called on. Only if that is a linear function of them alone is it known how gradients scale
with the batch. A mean or sum written by hand counts as a loss if only elementwise arithmetic lies between it
and the model's output.
"""

from __future__ import annotations

import functools
import math
import statistics
from typing import TYPE_CHECKING, Any

from autotune.trial.runtime.sdk_reports import Later

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from autotune.trial.hooks.model.trained_modules import TrainedModules
    from autotune.trial.runtime.state import RuntimeState

_NAMES = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "kl_div",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "poisson_nll_loss", "gaussian_nll_loss",
    "hinge_embedding_loss", "margin_ranking_loss", "cosine_embedding_loss", "triplet_margin_loss",
    "soft_margin_loss", "multi_margin_loss", "multilabel_soft_margin_loss",
)  # fmt: skip
_KNOWN = frozenset(_NAMES)
_LINEAR = (
    "Add",
    "Sub",
    "Neg",
    "Mul",
    "Div",
    "ToCopy",
    "Clone",
    "View",
    "Squeeze",
    "Unsqueeze",
    "Alias",
    "Expand",
)
_EACH = frozenset(
    {
        "Abs", "Add", "Clamp", "ClampMax", "ClampMin", "Clone", "Cos", "Div", "Exp", "Log", "Log1P",
        "LogSigmoid", "Maximum", "Minimum", "Mul", "Neg", "Pow", "Relu", "Rsub", "Sigmoid", "Sin", "Softplus",
        "Sqrt", "Squeeze", "Sub", "Tanh", "ToCopy", "Unsqueeze", "View", "Where",
    }
)  # fmt: skip
"""Operations on each element separately, or moves of elements that do not mix samples."""
_WEIGHING = frozenset({"Mul", "Div"})
"""Operations in which constants, possibly made from the whole batch, may not take part."""
_BY_HAND = {"MeanBackward0": "mean", "SumBackward0": "sum"}
_BY_ROW = ("MeanBackward1", "SumBackward1", "SelectBackward0")
"""Reductions over some dimensions, possibly not that of the samples."""
_ON_WEIGHTS = (
    "Abs", "Add", "LinalgVectorNorm", "Mean", "Mul", "Norm", "Pow", "Sqrt", "Sum", "Stack", "View",
)  # fmt: skip
"""Operations in penalties on weights; constants in them may have any source."""
_COMPARING = ("margin_ranking_loss", "cosine_embedding_loss", "triplet_margin_loss")
"""Losses whose samples are often made from others of the same batch."""
_OVER_PAIRS = ("cross_entropy", "binary_cross_entropy_with_logits")
"""Losses that contrastive training applies to all pairs of a batch."""
_MAX_NODES = 200
_SCALE_MOVES = 1.05
"""Largest ratio of the factors of a mean if they are one constant of the script, up to rounding."""
_MOST_OUTPUTS = 16


class Losses:
    """Observes the functional losses; `reduction` is ``mean``, ``sum`` or ``unknown``."""

    def __init__(self, state: RuntimeState, root: TrainedModules) -> None:
        self._state = state
        self._root = root
        self._calls: list[tuple[Any, str, float, int]] = []
        self._outputs: dict[tuple[Any, int], int] = {}
        """Start of the graphs of the model's outputs, with their number of rows.

        Keys are a node and the index of its result: a compiled model has one node for all.
        """
        self._inside = False
        self._noted_in_call = False
        self._compiled = False
        self._settled = False
        self._verdicts: list[str] = []
        self._scales: list[float] = []
        """Factors of means, where known."""
        self.bce_outside = False
        self.samples: Callable[[], int] = _not_known
        """Samples in the batch of the next backward pass; 0 if unknown."""

    @property
    def reduction(self) -> str:
        """Return the reduction that all examined backward passes agreed on."""
        kinds = set(self._verdicts)
        return kinds.pop() if len(kinds) == 1 else "unknown"

    @property
    def scale(self) -> float | None:
        """Return the factor of means before their backward passes; None if it is no constant.

        With several weighted losses the factor depends on their values, and varies.
        """
        if self.reduction != "mean" or not self._scales:
            return None
        least, most = min(self._scales), max(self._scales)
        return statistics.median(self._scales) if most <= _SCALE_MOVES * least else None

    def install(self, torch: Any, assign: Callable[[Any, str, Any], None]) -> None:
        """Replace the functional losses until detection has settled."""
        functional = torch.nn.functional
        self._root.on_output = self.returned
        self._root.on_evaluated = self.forget
        for name in _NAMES:
            original = getattr(functional, name, None)
            if original is None:
                continue
            watching = self._watch(name, original, torch)
            assign(functional, name, watching)
            self._root.swap_while_detecting(functional, name, original, watching)

    def _watch(self, name: str, original: Callable[..., Any], torch: Any) -> Callable[..., Any]:
        state = self._state
        is_compiling = torch.compiler.is_compiling

        @functools.wraps(original)
        def loss(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or state.capturing():
                return original(*args, **kwargs)
            if self._inside or not state.here() or "losses" in state.faults.off:
                return original(*args, **kwargs)
            self._inside = True
            try:
                value = original(*args, **kwargs)
            finally:
                self._inside = False
            try:
                if name == "binary_cross_entropy" and not state.depth:
                    self.bce_outside = True
                if self._root.detecting and torch.is_grad_enabled():
                    self._note(name, args, kwargs, value)
            except Exception as error:
                state.faults.note("losses", error)
            return value

        return loss

    def _note(self, name: str, args: Any, kwargs: Any, value: Any) -> None:
        function = getattr(value, "grad_fn", None)
        if function is None:
            return
        self._noted_in_call = self._noted_in_call or bool(self._state.depth)
        if len(self._calls) > 64:
            return
        kind = kwargs.get("reduction", "mean")
        positional = [a for a in args[2:] if isinstance(a, str)]
        if positional:
            kind = positional[-1]
        if kwargs.get("size_average") is False:
            kind = "sum"
        if value.dim() and kind != "batchmean":
            kind = "none"
        if name in ("cross_entropy", "nll_loss") and kind == "mean" and self._uneven(args, kwargs):
            kind = "unknown"
        if name in _COMPARING or (name in _OVER_PAIRS and _square(args, kwargs)):
            kind = "unknown"
        kind = {"batchmean": "mean"}.get(kind, kind)
        rows = kwargs.get("input", args[0] if args else None)
        if kind == "mean" and not _is_whole(rows, self.samples()):
            kind = "unknown"
        self._calls.append(
            (
                function,
                kind if kind in ("mean", "sum") else "unknown",
                float(value.detach().sum()),
                len(rows) if getattr(rows, "ndim", 0) else 0,
            )
        )

    def _uneven(self, args: Any, kwargs: Any) -> bool:
        """Return whether a mean is over weighted classes or over non-padding, and so not over the batch."""
        weight = kwargs.get("weight", args[2] if len(args) > 2 else None)
        if weight is not None:
            return True
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        if target is None or target.is_floating_point():
            return False
        ignored = kwargs.get("ignore_index", -100)
        return bool((target == ignored).any())

    def compiled(self, names: Iterable[str]) -> None:
        """Record compiled code that calls these functions, whose losses cannot be observed."""
        self._compiled = self._compiled or not _KNOWN.isdisjoint(names)

    def returned(self, out: Any, rows: int) -> None:
        """Record the output of a training call.

        Args:
            out: Any structure. If a loss was computed inside the call, no part of it counts as
                sample by sample.
            rows: Rows of its first input. An output with another number is a loss, or depends on the model
                alone.
        """
        inside, self._noted_in_call = self._noted_in_call, False
        if inside or self._compiled or rows < 2:
            return
        pending = [out]
        while pending and len(self._outputs) < _MOST_OUTPUTS:
            item = pending.pop()
            if isinstance(item, (list, tuple)):
                pending += item[:_MOST_OUTPUTS]
            elif isinstance(item, dict):
                pending += list(item.values())[:_MOST_OUTPUTS]
            elif getattr(item, "grad_fn", None) is not None and item.dim() and len(item) == rows:
                self._outputs[item.grad_fn, item.output_nr] = rows

    def settle(self) -> None:
        """End the examination, also if models are detected again, as losses are not observed then."""
        self._settled = True
        self.forget()

    def forget(self) -> None:
        """Drop the recorded graphs, as no backward pass will use them."""
        self._calls.clear()
        self._outputs.clear()
        self._noted_in_call = False

    def backward(self, loss: Any) -> None:
        """Examine the graph of the value that `backward` is about to be called on."""
        calls, self._calls = self._calls, []
        outputs, self._outputs = self._outputs, {}
        self._root.awaits_backward = False
        if self._settled or not self._root.detecting or len(self._verdicts) >= 8:
            return
        known = {function: args for function, *args in calls}
        self._verdicts.append(self._judge(loss, known, outputs))

    def _judge(self, loss: Any, known: dict[Any, list[Any]], outputs: dict[tuple[Any, int], int]) -> str:
        start = getattr(loss, "grad_fn", None)
        if start is None or not (known or outputs) or loss.dim():
            return "unknown"
        met: dict[Any, list[Any]] = {}
        scaled = regular = False
        queue: list[tuple[Any, bool]] = [(start, False)]
        visited = set[tuple[Any, bool]]()
        while queue and len(visited) < _MAX_NODES:
            node, is_scaled = place = queue.pop()
            if place in visited:
                continue
            visited.add(place)
            name = type(node).__name__
            by_hand = _BY_HAND.get(name)
            if node in known or (by_hand is not None and _over_samples(node, outputs)):
                met[node] = known.get(node, [by_hand, math.nan, 0])
                scaled = scaled or is_scaled
            elif name.startswith(_LINEAR):
                is_scaled = is_scaled or name.startswith(("Mul", "Div"))
                queue += [(inner, is_scaled) for inner, _ in node.next_functions if inner is not None]
            elif _of_weights(node):
                regular = True
            else:
                return "unknown"  # a part that is none of the losses: possibly summed over the batch
        kinds: set[str] = {kind for kind, _, _ in met.values()}
        if queue or len(kinds) != 1:
            return "unknown"
        kind = kinds.pop()
        # Penalties on weights count once per step, like a mean over its parts; but the factor of a mean
        # cannot be determined beside them.
        if sum((kind == "sum", scaled, regular)) > 1:
            return "unknown"
        total = sum(value for _, value, _ in met.values())
        if kind == "mean" and scaled and math.isnan(total):
            return "unknown"  # possibly by the number of samples
        if kind == "mean" and scaled and total:
            times = abs(float(loss.detach())) / abs(total)
            # A mean times the number of samples is a sum.
            whole = any(n > 1 and math.isclose(times, n, rel_tol=1e-3) for _, _, n in met.values())
            if times > 8 or whole:
                return "unknown"
            self._scales.append(times)
        elif kind == "mean" and not scaled:
            self._scales.append(1.0)
        return kind


def _of_weights(node: Any) -> bool:
    """Return whether a value depends on trained weights alone, like a penalty on their size."""
    queue, visited = [node], set[Any]()
    while queue and len(visited) < _MAX_NODES:
        inner = queue.pop()
        if inner in visited:
            continue
        visited.add(inner)
        name = type(inner).__name__
        if name == "AccumulateGrad":
            # Samples with a gradient, as for a gradient penalty, are no parameters.
            if type(inner.variable).__name__ != "Parameter":
                return False
        elif not name.startswith(_ON_WEIGHTS) or any(further is None for further, _ in inner.next_functions):
            return False  # a tensor without a gradient takes part: possibly samples
        queue += [further for further, _ in inner.next_functions if further is not None]
    return not queue


def _not_known() -> int:
    return 0


def _is_whole(given: Any, samples: int) -> bool:
    """Return whether a mean may be over all samples of a batch, with equally many parts each.

    It is not if a loop sums up a computation per sample, or if some of the rows are selected.
    """
    shape = getattr(given, "shape", None)
    if shape is None or samples < 2:
        return True
    return bool(shape) and (shape[0] % samples == 0 or samples in shape[1:])


def _over_samples(node: Any, outputs: dict[tuple[Any, int], int]) -> bool:
    """Return whether a reduction's input is derived from the model's outputs, sample by sample."""
    sizes = _sizes(node)
    queue, visited = [place for place in node.next_functions if place[0] is not None], set[Any]()
    rows = set[int]()
    while queue and len(visited) < _MAX_NODES:
        place = queue.pop()
        if place in visited:
            continue
        visited.add(place)
        if place in outputs:
            rows.add(outputs[place])
            continue
        inner = place[0]
        name = type(inner).__name__
        if name == "SliceBackward0" and _takes_all(inner):
            pass
        elif name in _BY_ROW:
            shape = _sizes(inner)
            if _over_pairs(shape):
                return False
            dims = getattr(inner, "_saved_dim", None)
            dims = dims if isinstance(dims, tuple) else (dims,)
            # Autograd stores negative dimensions unchanged, or wrapped around as unsigned numbers.
            if not shape or not all(isinstance(d, int) and _signed(d) % len(shape) for d in dims):
                return False
        elif (act := name.partition("Backward")[0]) not in _EACH or (
            act in _WEIGHING and any(further is None for further, _ in inner.next_functions)
        ):
            return False
        elif act == "Unsqueeze" and getattr(inner, "_saved_dim", None) == 0:
            return False  # samples become columns, to be broadcast over the others
        queue += [further for further in inner.next_functions if further[0] is not None]
    return not queue and len(rows) == 1 and bool(sizes) and sizes[0] in rows and not _over_pairs(sizes)


def _takes_all(node: Any) -> bool:
    """Return whether a slice takes all rows; PyTorch 2.6 has one for ``z[:, 0]`` before the column."""
    sizes, dim = _sizes(node), _signed(node._saved_dim)
    return bool(sizes) and (node._saved_start, node._saved_step) == (0, 1) and node._saved_end >= sizes[dim]


def _over_pairs(sizes: tuple[int, ...]) -> bool:
    """Return whether there is one column per sample, as after broadcasting over all others."""
    return len(sizes) > 1 and sizes[0] == sizes[1] > 1


def _sizes(node: Any) -> tuple[int, ...]:
    """Return the sizes of a reduction's input."""
    found = getattr(node, "_saved_self_sym_sizes", None)
    return tuple(int(n) for n in found) if found else ()


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _square(args: Any, kwargs: Any) -> bool:
    """Return whether logits relate each sample to each other sample, as in contrastive losses."""
    logits = kwargs.get("input", args[0] if args else None)
    if logits is None or logits.dim() != 2 or abs(logits.shape[0] - logits.shape[1]) > 1:
        return False
    return not _by_weights(logits.grad_fn)


def _by_weights(node: Any) -> bool:
    """Return whether a linear layer made the columns: as many as its weights have rows."""
    node = _unconverted(node)
    if not type(node).__name__.startswith(("AddmmBackward", "MmBackward")):
        return False
    return type(_unconverted(node.next_functions[-1][0])).__name__ == "AccumulateGrad"


def _unconverted(node: Any) -> Any:
    """Return the input of conversions and negations."""
    while type(node).__name__.startswith(("ToCopyBackward", "TBackward")):
        node = node.next_functions[0][0]
    return node


def read_loss(losses: Any) -> float | None:
    """Return the sum of the values that `backward` was called on, with their factors; a mean if no scalar.

    None if one of them cannot be read.
    """
    if isinstance(losses, (int, float)):
        return float(losses)
    total = 0.0
    for value, factor in losses:
        plain = _plain(value)
        if plain is None:
            return None
        total += plain * factor
    return total


def _plain(value: Any) -> float | None:
    if isinstance(value, Later):
        return value.read()
    return float(value.float().mean() if getattr(value, "ndim", 0) else value)
