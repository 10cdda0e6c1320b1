"""Large linear layers, multiplied by oneDNN.

PyTorch multiplies single-precision matrices with MKL, which leaves half of the vector units of AMD's processors idle.
oneDNN, with which PyTorch convolves, uses all of them.
"""

from typing import Any, TypeVar

import torch as th
from torch import nn
from torch.nn import functional

from sb3_ppo_variants.backends.views import view_of

Module = TypeVar("Module", bound=nn.Module)

# Smaller layers take so little time that MKL's smaller overhead counts.
SMALLEST = 2**16


def available() -> bool:
    """Whether this build of PyTorch has both libraries, and the operator that multiplies with oneDNN."""
    both = th.backends.mkl.is_available() and th.backends.mkldnn.is_available()
    return both and hasattr(th.ops.mkldnn, "_linear_pointwise")


def multiplied(module: Module) -> Module:
    """Return a view of a module whose large linear layers are multiplied by oneDNN, or the module if it has none."""
    return _viewed(module, {}) if available() else module


def _viewed(module: Any, views: dict[nn.Module, nn.Module]) -> Any:
    """Return the view of a module; ``views`` has those of the modules that were seen before."""
    if module not in views:
        children = {name: child for name, child in module._modules.items() if child is not None}
        changed = {name: view for name, child in children.items() if (view := _viewed(child, views)) is not child}
        views[module] = view_of(module, **changed) if changed else module
        if type(module) is nn.Linear and "forward" not in vars(module) and module.weight.numel() >= SMALLEST:
            views[module] = view_of(module)
            views[module].forward = Multiplied(module)
    return views[module]


class Multiplied:
    """Computes a linear layer with oneDNN.

    :param layer: the layer
    """

    def __init__(self, layer: nn.Linear):
        self._layer = layer

    def __call__(self, rows: th.Tensor) -> th.Tensor:
        weight, bias = self._layer.weight, self._layer.bias
        single = rows.dtype == weight.dtype == th.float32 and not th.is_autocast_enabled("cpu")
        linear = Product.apply if single and rows.ndim == 2 else functional.linear
        return linear(rows, weight, bias)


class Product(th.autograd.Function):
    """``Product.apply(rows, weight, bias)`` equals ``functional.linear`` for two-dimensional rows, up to rounding."""

    @staticmethod
    def forward(ctx: Any, rows: th.Tensor, weight: th.Tensor, bias: th.Tensor | None) -> th.Tensor:
        ctx.save_for_backward(rows, weight)
        return _product(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: th.Tensor) -> tuple[th.Tensor | None, ...]:
        (gradient,), (rows, weight) = gradients, ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if of_rows else None,
            _product(gradient.t(), rows.t()) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )


def _product(a: th.Tensor, b: th.Tensor, bias: th.Tensor | None = None) -> th.Tensor:
    """Return ``a`` times the transpose of ``b``, plus a bias."""
    return th.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
