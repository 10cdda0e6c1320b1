"""Action masks, as in sb3-contrib: they say which actions an environment allows.

A mask is a flat array with a boolean for each action of a ``Discrete`` space, for each category of each dimension of a
``MultiDiscrete`` space, or for 0 and 1 in each dimension of a ``MultiBinary`` space. That of a ``Dict`` or ``Tuple``
space has those of its discrete parts, one after the other, or is a structure like the space with a mask for each part;
a part that is left out or ``None`` may do everything, and a ``Box`` has no mask.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from sb3_ppo_variants.envs.capabilities import has_attr, offers, single_envs
from sb3_ppo_variants.envs.outputs import as_real_array, refuse_output
from sb3_ppo_variants.errors import ArgumentError, refuse
from sb3_ppo_variants.interrupts import HELD
from sb3_ppo_variants.layout import Actions, AnySpace, HybridLayout, Path, is_hybrid, parts_of

METHOD = "action_masks"
# Raises an error that names a mask, what was found, and what is allowed.
Refuse: TypeAlias = Callable[[str, str, str], NoReturn]


def choices(space: AnySpace) -> list[int] | None:
    """Count the categories in each dimension of an action space, or ``None`` if it cannot be masked."""
    if is_hybrid(space):
        return [n for part in HybridLayout(space).parts for n in choices(part.flat) or ()] or None
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return [int(n) for n in space.nvec]
    if isinstance(space, spaces.MultiBinary) and isinstance(space.n, int):
        return [2] * space.n
    return None


def check_maskable(space: AnySpace) -> None:
    """:raises ArgumentError: if actions in the space cannot be masked"""
    if choices(space) is None:
        raise ArgumentError(
            f"actions in {space} cannot be masked; those of Discrete, and of flat MultiDiscrete and MultiBinary spaces "
            "can, and those of Dict and Tuple spaces with such parts"
        )


def dimensions(space: AnySpace) -> list[str]:
    """Name each dimension with a mask, for messages such as "False for every action in dimension 1"."""
    if not is_hybrid(space):
        n = len(choices(space) or ())
        return [f" in dimension {i}" if n > 1 else "" for i in range(n)]
    parts = HybridLayout(space).parts
    return [f"{of} of the part {part.name!r}" for part in parts for of in dimensions(part.flat)]


def _flat(space: AnySpace, mask: object, quantity: str, refuse_it: Refuse) -> np.ndarray:
    """Convert a mask without the structure of a hybrid space to a flat array of booleans."""
    sizes, array = choices(space), as_real_array(mask)
    assert sizes is not None
    if array is None or not np.isin(array, (0, 1)).all():
        allowed = ", or have the structure of the action space" if is_hybrid(space) else ""
        refuse_it(quantity, repr(mask), f"an array of booleans{allowed}")
    # sb3-contrib also accepts a mask with a row for each dimension.
    shapes = {(sum(sizes),)} | ({(len(sizes), sizes[0])} if len({*sizes}) == 1 and not is_hybrid(space) else set())
    if array.shape not in shapes:
        allowed = " or ".join(map(str, sorted(shapes, key=len)))
        refuse_it(quantity, f"an array of shape {array.shape}", f"of shape {allowed}")
    return array.ravel().astype(bool)


def is_structure(space: AnySpace, mask: object) -> bool:
    """Whether a mask has the structure of a hybrid space, instead of being flat."""
    kinds = Mapping if isinstance(space, spaces.Dict) else tuple
    return is_hybrid(space) and isinstance(mask, kinds)


def flatten(space: AnySpace, mask: object, quantity: str, refuse_it: Refuse) -> np.ndarray:
    """Flatten a mask to an array of booleans.

    :param quantity: what to call the mask if it is wrong
    :param refuse_it: raises the error if it is
    """
    if not is_structure(space, mask):
        return _flat(space, mask, quantity, refuse_it)
    assert is_hybrid(space)
    masks = dict(_divide(space, mask, quantity, (), refuse_it))
    arrays = []
    for part, (path, _) in zip(HybridLayout(space).parts, parts_of(space), strict=True):
        sizes, of, of_part = choices(part.flat), f"{quantity} of the part {part.name!r}", masks.get(path)
        if of_part is None:
            arrays.append(np.ones(sum(sizes or ()), bool))
        elif sizes is None:
            refuse_it(of, repr(of_part), "None or left out, because the part is a Box")
        else:
            arrays.append(_flat(part.flat, of_part, of, refuse_it))
    return np.concatenate(arrays)


def _divide(space: AnySpace, mask: Any, quantity: str, path: Path, refuse_it: Refuse) -> Iterator[tuple[Path, object]]:
    """Divide masks into those of the undivided parts of a space, with their paths, except those that are left out."""
    if mask is None or not is_hybrid(space):
        yield path, mask
        return
    of = f"{quantity} of the part {'.'.join(map(str, path))!r}" if path else quantity
    if isinstance(space, spaces.Dict):
        names = ", ".join(map(repr, space))
        if not isinstance(mask, Mapping):
            refuse_it(of, repr(mask), f"a dict with masks of {names}")
        if unknown := [key for key in mask if key not in space.spaces]:
            refuse_it(of, f"a dict with {unknown[0]!r}", f"one with masks of {names}")
        of_parts: Mapping[Any, object] = mask
    else:
        n = len(space.spaces)
        if not isinstance(mask, tuple) or len(mask) != n:
            refuse_it(of, repr(mask), f"a tuple of {n} masks, None for parts without one")
        of_parts = dict(enumerate(mask))
    for key, of_part in of_parts.items():
        yield from _divide(space[key], of_part, quantity, (*path, key), refuse_it)


class MaskCheck:
    """Refuses masks that do not fit an action space."""

    def __init__(self, space: AnySpace):
        sizes = choices(space)
        assert sizes is not None
        self._space = space
        self._size = sum(sizes)
        self._starts = np.cumsum([0, *sizes[:-1]])
        self._names = dimensions(space)

    def stack(self, masks: Sequence[object]) -> np.ndarray:
        """Stack the masks of all environments as one array of booleans, shape ``(n_envs, size)``.

        :raises EnvOutputError: if a mask has a wrong shape or type, or allows nothing, naming its environment
        """
        # Nearly all environments return flat boolean arrays, which can be checked together.
        if not all(type(mask) is np.ndarray and mask.dtype == bool and mask.shape == (self._size,) for mask in masks):
            masks = [self.fit(mask, i) for i, mask in enumerate(masks)]
        stacked: np.ndarray = np.stack(masks)  # type: ignore[arg-type]
        # Whether each dimension of each environment has an allowed action.
        if len(self._starts) == 1:
            allowed = stacked.any(axis=1, keepdims=True)
        else:
            allowed = np.logical_or.reduceat(stacked, self._starts, axis=1)
        if not allowed.all():
            env_index, dimension = (int(i) for i in np.argwhere(~allowed)[0])
            found = f"False for every action{self._names[dimension]}"
            refuse_output("action mask", found, "True for at least one", env_index)
        return stacked

    def fit(self, mask: object, env_index: int) -> np.ndarray:
        """Flatten one mask to an array of booleans.

        :raises EnvOutputError: if the mask has a wrong shape or type
        """
        return flatten(self._space, mask, "action mask", partial(refuse_output, env_index=env_index))


def own_space(env: VecEnv) -> spaces.Space[object]:
    """Find the space of an environment's actions, within its own bounds if ``ActionsAsDrawn`` reports wider ones."""
    space: spaces.Space[object] = env.action_space
    return env.get_attr("own_action_space")[0] if has_attr(env, "own_action_space") else space


def random_actions(env: VecEnv, space: spaces.Space[object] | None = None) -> Actions:
    """Draw a random action for each environment, from this space or its own; with masks, one that the mask allows."""
    space = env.action_space if space is None else space
    if not has_attr(env, METHOD) or (sizes := choices(space)) is None:
        samples = [space.sample() for _ in range(env.num_envs)]
        return samples if is_hybrid(space) else np.array(samples)
    masks = MaskCheck(space).stack(env.env_method(METHOD))
    parts = np.split(masks, np.cumsum(sizes)[:-1], axis=1)
    drawn = np.stack([[space.np_random.choice(np.flatnonzero(row)) for row in part] for part in parts], axis=1)
    if not is_hybrid(space):
        return drawn.reshape(env.num_envs, *(space.shape or ())) + getattr(space, "start", 0)
    layout = HybridLayout(space)
    rows = layout.to_rows([space.sample() for _ in range(env.num_envs)])
    rows[:, layout.discrete] = drawn
    return layout.for_envs(rows)


class Masks:
    """The masks of a model's environments."""

    def __init__(self, model: OnPolicyAlgorithm):
        self._model = model
        self._check = MaskCheck(model.action_space)

    def now(self) -> np.ndarray:
        """Return the masks of the current states; see :meth:`MaskCheck.stack`."""
        env = self._model.env
        assert env is not None
        with HELD:
            masks = env.env_method(METHOD)
        return self._check.stack(masks)


def check_env(env: VecEnv, policy: str, takes_masks: bool) -> None:
    """Check that environments have masks if a policy needs them, and warn if the policy ignores their masks.

    :raises ArgumentError: if masks are missing, naming the environment
    """
    if takes_masks and not has_attr(env, METHOD):
        raise ArgumentError(
            f"{policy} needs action masks, but {_name(env)} has no {METHOD}(): add this method to the "
            "environments, or wrap each of them in sb3-contrib's ActionMasker"
        )
    if not takes_masks and choices(env.action_space) is not None and offers(env, METHOD):
        warnings.warn(
            f"{_name(env)} has {METHOD}(), which {policy} ignores: to mask actions, use MaskableMlpPolicy, "
            "MaskableCnnPolicy or MaskableMultiInputPolicy, or MaskableMlpLstmPolicy and the like with a memory"
        )


def check_given(masks: object, takes_masks: bool, policy: str, space: AnySpace) -> dict[str, np.ndarray]:
    """Check the masks passed to ``predict``.

    :return: the arguments of the policy's ``predict``
    :raises ArgumentError: if masks are missing, or not allowed
    """
    if not takes_masks:
        if masks is not None:
            raise ArgumentError(f"action_masks: {policy} does not use masks; a policy such as MaskableMlpPolicy does")
        return {}
    if masks is None:
        raise ArgumentError(
            f"action_masks=None: {policy} needs the masks of the states, as from sb3_contrib.common.maskable.utils."
            "get_action_masks(env). To evaluate the model, pass sb3_ppo_variants.evaluation.WithMasks(model, env) to "
            "SB3's evaluate_policy. A mask of ones allows everything"
        )
    sizes, array = choices(space), as_real_array(_without_structure(space, masks))
    assert sizes is not None
    rows = None if array is None or array.size % sum(sizes) else array.reshape(-1, sum(sizes))
    if rows is None or not np.isin(rows, (0, 1)).all():
        refuse("action_masks", masks, f"{sum(sizes)} booleans for each observation")
    parts = np.split(rows, np.cumsum(sizes)[:-1], axis=1)
    for part, name in zip(parts, dimensions(space), strict=True):
        if not part.any(axis=1).all():
            refuse("action_masks", masks, f"at least one action{name} for each observation")
    return {METHOD: rows.astype(bool)}


def _without_structure(space: AnySpace, masks: Any) -> object:
    """Flatten masks passed to ``predict``, if some have the structure of a hybrid space.

    :raises ArgumentError: if one does not fit the space
    """

    def refuse_it(quantity: str, found: str, allowed: str) -> NoReturn:
        raise ArgumentError(f"action_masks: the {quantity} is {found}, but must be {allowed}")

    several = [masks] if is_structure(space, masks) else masks
    if not isinstance(several, list | np.ndarray) or not any(is_structure(space, mask) for mask in several):
        return masks
    return [flatten(space, mask, f"mask of observation {i}", refuse_it) for i, mask in enumerate(several)]


def check_number(n_masks: int, n_observations: int) -> None:
    """:raises ArgumentError: if ``predict`` gets more or fewer masks than observations"""
    if n_masks != n_observations:
        raise ArgumentError(f"action_masks: {n_masks} masks for {n_observations} observations; pass one for each")


def _name(env: VecEnv) -> str:
    """Find the id of the environments, or else the name of their class, if they are in this process."""
    # Environments in other processes are not asked: a spec with a lambda cannot be sent, which would end the worker.
    inside = single_envs(env)
    if not inside:
        return "the environment"
    first = inside[0].unwrapped
    return type(first).__name__ if first.spec is None else first.spec.id
