"""Number format of a model's matrix products, which confirms a requested precision.

The output of a layer does not show it. Torch's GRU on a CPU, and its LSTM for packed sequences, multiply in
bf16 under autocast and accumulate in float32, so all outputs are float32. A layer that returns bf16 may only
have passed it on. So products are inspected where they are recorded: in the autograd graph of the result, and
in the outputs of layers that consist of one product. For compiled code it is the compiler's input.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SHORT: Final = {
    "torch.float32": "fp32",
    "torch.bfloat16": "bf16",
    "torch.float16": "fp16",
    "torch.float64": "fp64",
}
_LAYERS: Final = frozenset(
    {
        "Linear",
        "Bilinear",
        "Conv1d",
        "Conv2d",
        "Conv3d",
        "ConvTranspose1d",
        "ConvTranspose2d",
        "ConvTranspose3d",
        "MultiheadAttention",
    }
)
"""Classes whose output is the result of a product."""
_RECORDED: Final = (
    "Addmm",
    "Mm",
    "Bmm",
    "Baddbmm",
    "Addbmm",
    "Addmv",
    "Mv",
    "Linear",
    "Trilinear",
    "Convolution",
    "MkldnnLinear",
    "MkldnnConvolution",
    "MkldnnRnn",
    "CudnnRnn",
    "CudnnConvolution",
    "MiopenRnn",
    "ScaledDotProduct",
    "GroupedMm",
    "ScaledMm",
)
"""Prefixes of the names of autograd nodes for products."""
_CALLED: Final = frozenset(
    {
        "linear",
        "bilinear",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "matmul",
        "__matmul__",
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "einsum",
        "scaled_dot_product_attention",
    }
)
"""Names of functions and methods that are products in dynamo's graphs."""
_MOST_NODES: Final = 50_000
_DEEP: Final = 4
_WIDE: Final = 64


def is_product(layer: Any) -> bool:
    """Return whether a module's output is the result of one product."""
    return type(layer).__name__ in _LAYERS


def main_format(found: Counter[str]) -> str | None:
    """Return ``fp32``, ``bf16``, ``fp16`` or ``fp64``, the format of most elements; None without any."""
    # On a tie the wider format is returned, which is never the requested one.
    return max(sorted(found, reverse=True), key=lambda name: found[name], default=None)


def of_output(out: Any) -> Counter[str]:
    """Return the elements of a layer's first output, by format."""
    for tensor in _tensors(out, _DEEP):
        return _counted(tensor.dtype, tensor.shape)
    return Counter()


def in_own_layout(out: Any) -> bool:
    """Return whether a layer's first output has MKL-DNN's layout, which a product keeps from its input."""
    return any(
        str(getattr(tensor, "layout", "")) == "torch._mkldnn" for tensor in list(_tensors(out, _DEEP))[:1]
    )


def in_graph(out: Any) -> Counter[str]:
    """Return the elements of the products that led to this result, by format, from the autograd graph."""
    found: Counter[str] = Counter()
    pending = [
        node for tensor in _tensors(out, _DEEP) if (node := getattr(tensor, "grad_fn", None)) is not None
    ]
    visited = set(pending)
    while pending and len(visited) < _MOST_NODES:
        node = pending.pop()
        if type(node).__name__.startswith(_RECORDED):
            for metadata in list(node._input_metadata)[:1]:
                found += _counted(metadata.dtype, metadata.shape)
        for inner, _ in node.next_functions:
            if inner is not None and inner not in visited:
                visited.add(inner)
                pending.append(inner)
    return found


def in_compiled(graph: Any) -> Counter[str]:
    """Return the same for a graph that dynamo passes to a compiler, with its inner graphs."""
    found: Counter[str] = Counter()
    for module in graph.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if _is_called(node, module):
                for tensor in _tensors(node.meta.get("example_value"), 1):
                    found += _counted(tensor.dtype, tensor.shape)
                    break
    return found


def _is_called(node: Any, module: Any) -> bool:
    if node.op == "call_function":
        return getattr(node.target, "__name__", "") in _CALLED
    if node.op == "call_method":
        return node.target in _CALLED
    return node.op == "call_module" and is_product(module.get_submodule(node.target))


def _counted(dtype: Any, shape: Iterable[Any]) -> Counter[str]:
    name = SHORT.get(str(dtype))
    return Counter() if name is None else Counter({name: max(1, math.prod(_size(n) for n in shape))})


def _size(size: Any) -> int:
    """Return a size as a number; conversion of a symbol would specialize the compiled code."""
    if isinstance(size, int):
        return size
    hint = getattr(getattr(size, "node", None), "hint", None)
    return hint if isinstance(hint, int) else 1


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        yield value
    elif depth:
        if isinstance(value, dict):
            inner: Iterable[Any] = list(value.values())[:_WIDE]
        elif isinstance(value, (list, tuple)):
            inner = value[:_WIDE]
        else:
            # The result has a class of the script.
            inner = list(getattr(value, "__dict__", {}).values())[:_WIDE]
        for one in inner:
            yield from _tensors(one, depth - 1)
