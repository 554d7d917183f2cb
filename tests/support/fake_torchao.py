"""The parts of torchao 0.18 that are used, as the text of a module ``torchao.float8``.

In its own manner: layers exchanged in place from the inside out, parameters kept, products by a function of
autograd on what 8 bits can hold.
"""

FAKE_TORCHAO = """\
import enum, torch
from torch import nn
class ScalingGranularity(enum.Enum):
    TENSORWISE = "tensorwise"
    AXISWISE = "axiswise"
class Cast:
    def __init__(self, scaling_granularity): self.scaling_granularity = scaling_granularity
class Float8LinearConfig:
    def __init__(self, kind=ScalingGranularity.TENSORWISE): self.cast_config_input = Cast(kind)
    @staticmethod
    def from_recipe_name(name):
        assert name in ("tensorwise", "rowwise"), name
        rows = name == "rowwise"
        return Float8LinearConfig(ScalingGranularity.AXISWISE if rows else ScalingGranularity.TENSORWISE)
def cast(tensor): return tensor.to(torch.float8_e4m3fn).to(tensor.dtype)
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return cast(x) @ cast(weight)
    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return cast(grad) @ cast(weight).t(), cast(x).flatten(0, -2).t() @ cast(grad).flatten(0, -2)
class Float8Linear(nn.Linear):
    def forward(self, x):
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        return Product.apply(x, self.weight.t().to(x.dtype)) + self.bias.to(x.dtype)
    @classmethod
    def from_float(cls, old, config):
        with torch.device("meta"):
            new = cls(old.in_features, old.out_features, bias=False)
        new.config, new.weight, new.bias = config, old.weight, old.bias
        return new
def convert_to_float8_training(module, *, module_filter_fn=None, config=None):
    def visit(part, path, parent):
        for name, child in part.named_children():
            visit(child, f"{path}.{name}" if path else name, part)
        if isinstance(part, nn.Linear) and module_filter_fn(part, path):
            setattr(parent, path.split(".")[-1], Float8Linear.from_float(part, config))
    visit(module, "", None)
    return module
"""
