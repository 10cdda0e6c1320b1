"""Draws of random numbers that leave the global generators alone."""

from collections.abc import Sequence
from typing import Any

import torch as th
from torch.utils._python_dispatch import TorchDispatchMode

from sb3_ppo_variants.arguments import Values


class OwnDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws random numbers on the CPU from a copy of PyTorch's generator while the context is active, in this thread.

    The generator stays as it is, so other threads draw what they would have drawn. If it were restored afterwards, they
    would draw the same numbers twice.

    :param seed: the seed of the copy; ``None`` for the state of the generator
    """

    def __init__(self, seed: int | None = None):
        super().__init__()  # type: ignore[no-untyped-call]
        copy = th.Generator()
        self._copy = copy.set_state(th.get_rng_state()) if seed is None else copy.manual_seed(seed)

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Values | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if th.Tag.nondeterministic_seeded in function.tags and given.get("generator") is None:
            name = f"{function._overloadname}_generator".removeprefix("default_")
            function = getattr(function.overloadpacket, name, function)
            devices = [given.get("device") or "cpu", *(each.device for each in args if isinstance(each, th.Tensor))]
            left = [argument.name for argument in function._schema.arguments[len(args) :]]
            if "generator" in left and th.device(devices[-1]).type == "cpu":
                given["generator"] = self._copy
        return function(*args, **given)
