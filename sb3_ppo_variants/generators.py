"""Draws of random numbers that leave the global generators alone."""

from collections.abc import Sequence
from typing import Any

import torch as th
from torch.utils._python_dispatch import TorchDispatchMode

from sb3_ppo_variants.arguments import Values


class OwnDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Draws PyTorch's random numbers from copies of its generators while the context is active, in this thread.

    The generators stay as they are, so other threads draw what they would have drawn. Restoring them afterwards would
    make other threads draw the same numbers twice. What a GPU draws for dropout has no generator that can be passed.

    :param seed: the seed of the copies; ``None`` for the states of the generators
    """

    def __init__(self, seed: int | None = None):
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._copies = seed, dict[th.device, th.Generator]()

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Values | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if th.Tag.nondeterministic_seeded in function.tags and given.get("generator") is None:
            name = f"{function._overloadname}_generator".removeprefix("default_")
            function = getattr(function.overloadpacket, name, function)
            tensors = (each.device for each in args if isinstance(each, th.Tensor))
            device = th.device(next(tensors, given.get("device") or "cpu"))
            takes = [argument.name for argument in function._schema.arguments[len(args) :]]
            if "generator" in takes and device.type in ("cpu", "cuda"):
                given["generator"] = self._copies.get(device) or self._copy(device)
        return function(*args, **given)

    def _copy(self, device: th.device) -> th.Generator:
        copy = self._copies[device] = th.Generator(device)
        if self._seed is not None:
            return copy.manual_seed(self._seed)
        return copy.set_state(th.get_rng_state() if device.type == "cpu" else th.cuda.get_rng_state(device))
