"""Views of modules, through which an engine computes in its own way without changing a user's policy."""

from copy import copy
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch as th
from torch import nn
from torch.nn import functional

AnyModule = TypeVar("AnyModule", bound=nn.Module)
# The context of an autograd function, to which PyTorch and the function add attributes.
Context: TypeAlias = Any
# Smaller linear layers take so little time that the smaller overhead of MKL counts.
SMALLEST = 2**16


def make_view(module: AnyModule, **children: nn.Module) -> AnyModule:
    """Make a shallow copy of a module with some of its children replaced.

    It shares all parameters and all other children with the module, under the same names. If no child is replaced, it
    also has the children that the module gets later. Attributes of the view can be changed freely. Changing those of
    the module for a while instead would leave it changed if an interrupt hit at the wrong moment.
    """
    view = copy(module)
    if children:
        view._modules = {**module._modules, **children}
    return view


def with_onednn(layer: nn.Module) -> nn.Module:
    """Return a view of a large linear layer that oneDNN multiplies; other modules are returned themselves.

    PyTorch multiplies single-precision matrices with MKL, which leaves half of the vector units of AMD's processors
    idle. oneDNN, with which PyTorch convolves, uses all of them.
    """
    both = th.backends.mkl.is_available() and th.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not both or type(layer) is not nn.Linear or layer.weight.numel() < SMALLEST:
        return layer
    view = make_view(layer)
    view.forward = partial(_multiply_by_onednn, layer)  # type: ignore[method-assign]
    return view


def _multiply_by_onednn(layer: nn.Linear, rows: th.Tensor) -> th.Tensor:
    single = rows.dtype == layer.weight.dtype == th.float32 and not th.is_autocast_enabled("cpu")
    linear = Product.apply if single else functional.linear
    product: th.Tensor = linear(rows, layer.weight, layer.bias)
    return product


class Product(th.autograd.Function):
    """``Product.apply(rows, weight, bias)`` equals ``functional.linear`` for two-dimensional rows, up to rounding."""

    @staticmethod
    def forward(ctx: Context, rows: th.Tensor, weight: th.Tensor, bias: th.Tensor | None) -> th.Tensor:
        ctx.save_for_backward(rows, weight)
        return multiply(rows, weight, bias)

    @staticmethod
    def backward(ctx: Context, *gradients: th.Tensor) -> tuple[th.Tensor | None, ...]:
        (gradient,), (rows, weight) = gradients, ctx.saved_tensors
        needs_rows, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            multiply(gradient, weight.t()) if needs_rows else None,
            multiply(gradient.t(), rows.t()) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
        )


def multiply(a: th.Tensor, b: th.Tensor, bias: th.Tensor | None = None) -> th.Tensor:
    """Compute ``a`` times the transpose of ``b``, plus a bias, with oneDNN."""
    product: th.Tensor = th.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
    return product
