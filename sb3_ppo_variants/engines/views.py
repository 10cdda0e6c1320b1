"""Views of modules, through which an engine computes in its own way without changing a user's policy."""

from copy import copy
from typing import Any, TypeAlias, TypeVar, cast

import torch as th
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import MlpExtractor, NatureCNN
from torch import nn
from torch.nn import functional

from sb3_ppo_variants.engines.recognised import have_hooks

AnyModule = TypeVar("AnyModule", bound=nn.Module)
# The context of an autograd function, to which PyTorch and the function add attributes.
Context: TypeAlias = Any

# Smaller linear layers take so little time that the smaller overhead of MKL counts.
SMALLEST = 2**16
# Modules that do not change when they compute. Those of a user may, and a view would change in their place.
STATELESS = (nn.Linear, nn.Sequential, MlpExtractor, NatureCNN)


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


def without_scaling(policy: ActorCriticPolicy) -> ActorCriticPolicy:
    """Make a view of a policy that does not scale images."""
    view = make_view(policy)
    view.normalize_images = False
    return view


def without_layers(policy: ActorCriticPolicy, n_modules: int) -> ActorCriticPolicy:
    """Make a view of a policy that takes the output of the first modules of its ``NatureCNN`` as observations."""
    cnn = cast(nn.Sequential, policy.features_extractor.cnn)
    rest = make_view(cnn)
    rest.forward = cnn[n_modules:].forward  # type: ignore[method-assign]
    extractor = make_view(policy.features_extractor, cnn=rest)
    names = ("features_extractor", "pi_features_extractor", "vf_features_extractor")
    return without_scaling(make_view(policy, **dict.fromkeys(names, extractor)))


def with_onednn(module: AnyModule) -> AnyModule:
    """Return a view of a module whose large linear layers are multiplied by oneDNN, or the module if it has none.

    Layers within modules of a user are left as they are.

    If it has hooks, it is returned too: they expect it, as those of PyTorch's ``weight_norm`` do, which set its weight.

    PyTorch multiplies single-precision matrices with MKL, which leaves half of the vector units of AMD's processors
    idle. oneDNN, with which PyTorch convolves, uses all of them.
    """
    if have_hooks(module.modules()) or not has_onednn():
        return module
    return cast(AnyModule, _view_with_onednn(module, {}))


def has_onednn() -> bool:
    """Whether this build of PyTorch has both libraries, and the operator that multiplies with oneDNN."""
    both = th.backends.mkl.is_available() and th.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return both and hasattr(th.ops.mkldnn, "_linear_pointwise")


def _view_with_onednn(module: nn.Module, views: dict[nn.Module, nn.Module]) -> nn.Module:
    """Make the view of a module; ``views`` has those of the modules that were seen before."""
    if module not in views:
        changed = {
            name: view
            for name, child in module._modules.items()
            if child is not None and type(child) in STATELESS and (view := _view_with_onednn(child, views)) is not child
        }
        views[module] = make_view(module, **changed) if changed else module
        if type(module) is nn.Linear and "forward" not in vars(module) and module.weight.numel() >= SMALLEST:
            views[module] = make_view(module)
            views[module].forward = OneDNN(module)
    return views[module]


class OneDNN:
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
    def forward(ctx: Context, rows: th.Tensor, weight: th.Tensor, bias: th.Tensor | None) -> th.Tensor:
        ctx.save_for_backward(rows, weight)
        return _multiply(rows, weight, bias)

    @staticmethod
    def backward(ctx: Context, *gradients: th.Tensor) -> tuple[th.Tensor | None, ...]:
        (gradient,), (rows, weight) = gradients, ctx.saved_tensors
        needs_rows, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _multiply(gradient, weight.t()) if needs_rows else None,
            _multiply(gradient.t(), rows.t()) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
        )


def _multiply(a: th.Tensor, b: th.Tensor, bias: th.Tensor | None = None) -> th.Tensor:
    """Compute ``a`` times the transpose of ``b``, plus a bias."""
    product: th.Tensor = th.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
    return product
