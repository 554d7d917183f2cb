"""How the loss is reduced over the batch, and whether BCE stands on the model's output.

The functional losses are replaced while detection runs. What they returned is then looked for in
the graph of the value that `backward` is called on: only where that is made of them alone, and in a
linear way, is it known how gradients scale with the batch. A mean or sum that the script writes by
hand counts as one of them where nothing but arithmetic on each sample by itself lies between it and
what the model returned.
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
"""What acts on every element by itself, or moves elements without mixing samples."""
_WEIGHING = frozenset({"Mul", "Div"})
"""What constants, made from the whole batch perhaps, may not take part in."""
_BY_HAND = {"MeanBackward0": "mean", "SumBackward0": "sum"}
_BY_ROW = ("MeanBackward1", "SumBackward1", "SelectBackward0")
"""What is done over some dimensions, which may not be that of the samples."""
_ON_WEIGHTS = (
    "Abs", "Add", "LinalgVectorNorm", "Mean", "Mul", "Norm", "Pow", "Sqrt", "Sum", "Stack", "View",
)  # fmt: skip
"""What penalties on weights are made of; a constant that takes part may be anything."""
_COMPARING = ("margin_ranking_loss", "cosine_embedding_loss", "triplet_margin_loss")
"""Losses whose samples are often made from others of the same batch."""
_OVER_PAIRS = ("cross_entropy", "binary_cross_entropy_with_logits")
"""Losses that contrastive training applies to all pairs of a batch."""
_MAX_NODES = 200
_SCALE_MOVES = 1.05
"""What means are multiplied by is a constant of the script, up to rounding, or no figure of it."""
_MOST_OUTPUTS = 16


class Losses:
    """Watches the functional losses; `reduction` is ``mean``, ``sum`` or ``unknown``."""

    def __init__(self, state: RuntimeState, root: TrainedModules) -> None:
        self._state = state
        self._root = root
        self._calls: list[tuple[Any, str, float, int]] = []
        self._outputs: dict[tuple[Any, int], int] = {}
        """Where the graphs of the model's outputs begin, with the number of their rows.

        A node and which of its results: a compiled model has one node for all.
        """
        self._inside = False
        self._noted_in_call = False
        self._compiled = False
        self._settled = False
        self._verdicts: list[str] = []
        self._scales: list[float] = []
        """What means were multiplied by, where that is known."""
        self.bce_outside = False
        self.samples: Callable[[], int] = _not_known
        """Samples of the batch that the next backward pass is over; 0 where that is not known."""

    @property
    def reduction(self) -> str:
        """What every judged backward pass agreed on."""
        kinds = set(self._verdicts)
        return kinds.pop() if len(kinds) == 1 else "unknown"

    @property
    def scale(self) -> float | None:
        """What means were multiplied by before their backward passes; None where that is no constant.

        Of several losses with weights of their own it depends on how large they are, and moves.
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
        """Means over classes with weights, or over what is not padding: no mean over the batch."""
        weight = kwargs.get("weight", args[2] if len(args) > 2 else None)
        if weight is not None:
            return True
        target = kwargs.get("target", args[1] if len(args) > 1 else None)
        if target is None or target.is_floating_point():
            return False
        ignored = kwargs.get("ignore_index", -100)
        return bool((target == ignored).any())

    def compiled(self, names: Iterable[str]) -> None:
        """Code that calls these functions was compiled: a loss in it is made without our seeing it."""
        self._compiled = self._compiled or not _KNOWN.isdisjoint(names)

    def returned(self, out: Any, rows: int) -> None:
        """A trained module returned this in a training call.

        Args:
            out: Any structure. Where a loss was computed inside the call, nothing of it is taken to be
                sample by sample.
            rows: Of its first input. What has another number is a loss, or something of the model itself.
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
        """Nothing is judged any more, even where models are looked for again: losses are not watched then."""
        self._settled = True
        self.forget()

    def forget(self) -> None:
        """No backward pass is to come for what was seen so far: let go of the graphs."""
        self._calls.clear()
        self._outputs.clear()
        self._noted_in_call = False

    def backward(self, loss: Any) -> None:
        """Judge by the graph of the value that `backward` is about to be called on."""
        calls, self._calls = self._calls, []
        outputs, self._outputs = self._outputs, {}
        self._root.awaits_backward = False
        if self._settled or not self._root.detecting or len(self._verdicts) >= 8:
            return
        known = {function: told for function, *told in calls}
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
                return "unknown"  # a part that is none of the losses: summed over the batch, perhaps
        kinds: set[str] = {kind for kind, _, _ in met.values()}
        if queue or len(kinds) != 1:
            return "unknown"
        kind = kinds.pop()
        # What the weights alone make counts once a step, as the parts of a mean do together; but how much a
        # mean is scaled itself cannot be told beside it.
        if sum((kind == "sum", scaled, regular)) > 1:
            return "unknown"
        total = sum(value for _, value, _ in met.values())
        if kind == "mean" and scaled and math.isnan(total):
            return "unknown"  # by the number of samples, perhaps
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
    """Whether this is made of trained weights alone, as a penalty on their size is."""
    queue, visited = [node], set[Any]()
    while queue and len(visited) < _MAX_NODES:
        inner = queue.pop()
        if inner in visited:
            continue
        visited.add(inner)
        name = type(inner).__name__
        if name == "AccumulateGrad":
            # Samples that have a gradient, as for a penalty on it, are no parameters.
            if type(inner.variable).__name__ != "Parameter":
                return False
        elif not name.startswith(_ON_WEIGHTS) or any(further is None for further, _ in inner.next_functions):
            return False  # something else takes part that has no gradient: samples, perhaps
        queue += [further for further, _ in inner.next_functions if further is not None]
    return not queue


def _not_known() -> int:
    return 0


def _is_whole(given: Any, samples: int) -> bool:
    """Whether a mean may be one over all samples of a batch, each with as many parts as any other.

    It is not where a loop adds up what it computes sample by sample, nor where some of the rows are chosen.
    """
    shape = getattr(given, "shape", None)
    if shape is None or samples < 2:
        return True
    return bool(shape) and (shape[0] % samples == 0 or samples in shape[1:])


def _over_samples(node: Any, outputs: dict[tuple[Any, int], int]) -> bool:
    """Whether what is reduced here is made of the model's outputs, sample by sample."""
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
            # Autograd keeps negative dimensions as they are, or as the numbers they wrap around to.
            if not shape or not all(isinstance(d, int) and _signed(d) % len(shape) for d in dims):
                return False
        elif (act := name.partition("Backward")[0]) not in _EACH or (
            act in _WEIGHING and any(further is None for further, _ in inner.next_functions)
        ):
            return False
        elif act == "Unsqueeze" and getattr(inner, "_saved_dim", None) == 0:
            return False  # samples become columns, to be spread over the others
        queue += [further for further in inner.next_functions if further[0] is not None]
    return not queue and len(rows) == 1 and bool(sizes) and sizes[0] in rows and not _over_pairs(sizes)


def _takes_all(node: Any) -> bool:
    """``z[:, 0]`` is a slice of all rows in the graphs of PyTorch 2.6, before it is a column."""
    sizes, dim = _sizes(node), _signed(node._saved_dim)
    return bool(sizes) and (node._saved_start, node._saved_step) == (0, 1) and node._saved_end >= sizes[dim]


def _over_pairs(sizes: tuple[int, ...]) -> bool:
    """One column a sample, as where one was spread over all others; perhaps as many features by chance."""
    return len(sizes) > 1 and sizes[0] == sizes[1] > 1


def _sizes(node: Any) -> tuple[int, ...]:
    """Of what a reduction was given."""
    found = getattr(node, "_saved_self_sym_sizes", None)
    return tuple(int(n) for n in found) if found else ()


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def _square(args: Any, kwargs: Any) -> bool:
    """Logits of every sample against every (other) sample, as contrastive losses have them."""
    logits = kwargs.get("input", args[0] if args else None)
    if logits is None or logits.dim() != 2 or abs(logits.shape[0] - logits.shape[1]) > 1:
        return False
    return not _by_weights(logits.grad_fn)


def _by_weights(node: Any) -> bool:
    """A linear layer made the columns: as many as it has rows of weights, whatever the batch is."""
    node = _unturned(node)
    if not type(node).__name__.startswith(("AddmmBackward", "MmBackward")):
        return False
    return type(_unturned(node.next_functions[-1][0])).__name__ == "AccumulateGrad"


def _unturned(node: Any) -> Any:
    """What another number format, or the other direction, was made of."""
    while type(node).__name__.startswith(("ToCopyBackward", "TBackward")):
        node = node.next_functions[0][0]
    return node


def read_loss(losses: Any) -> float | None:
    """Sum of the values that `backward` was called on, each with its factor; a mean where no scalar.

    None where one of them cannot be read.
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
