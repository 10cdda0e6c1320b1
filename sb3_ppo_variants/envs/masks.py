"""Action masks, as in sb3-contrib: they say which actions an environment allows.

A mask is a flat array with a boolean for each action of a ``Discrete`` space, for each category of each dimension of a
``MultiDiscrete`` space, or for 0 and 1 in each dimension of a ``MultiBinary`` space. That of a ``Dict`` or ``Tuple``
space has those of its discrete parts, one after the other, or is a structure like the space with a mask for each part;
a part that is left out or ``None`` may do everything, and a ``Box`` has no mask.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import getattr_static
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper

from sb3_ppo_variants.envs.adapter import has_attr
from sb3_ppo_variants.envs.outputs import Value, as_real_array, refuse_output, show
from sb3_ppo_variants.errors import ArgumentError, EnvOutputError, WorkerError, refuse
from sb3_ppo_variants.interrupts import HELD
from sb3_ppo_variants.layout import Actions, AnySpace, HybridLayout, Path, is_hybrid, parts_of, size_of

METHOD = "action_masks"


def _sizes(space: AnySpace) -> list[int]:
    """Count the categories in each dimension of all parts of a space. A ``Box`` has none."""
    match space:
        case spaces.Dict() | spaces.Tuple():
            return [n for _, part in parts_of(space) for n in _sizes(part)]
        case spaces.Discrete():
            return [int(space.n)]
        case spaces.MultiDiscrete():
            return [int(n) for n in space.nvec.ravel()]
        case spaces.MultiBinary():
            return [2] * size_of(space)
    return []


def choices(space: AnySpace) -> list[int] | None:
    """Count the categories in each dimension of an action space, or ``None`` if it cannot be masked."""
    # Outside a Dict or Tuple, SB3's policies take spaces of one dimension only.
    is_flat = is_hybrid(space) or len(space.shape or ()) < 2
    return _sizes(space) or None if is_flat else None


def check_maskable(space: AnySpace) -> None:
    """:raises ArgumentError: if actions in the space cannot be masked"""
    if choices(space) is None:
        raise ArgumentError(
            f"actions in {space} cannot be masked; those of Discrete, and of flat MultiDiscrete and MultiBinary spaces "
            "can, and those of Dict and Tuple spaces with such parts"
        )


def _of_part(path: Path) -> str:
    return f" of the part {'.'.join(map(str, path))!r}" if path else ""


def _flatten(space: AnySpace, mask: Value, env_index: int, path: Path = ()) -> np.ndarray:
    """Flatten a mask to an array of booleans.

    :raises EnvOutputError: if it does not fit the space, naming the part of it
    """
    sizes, quantity = _sizes(space), f"action mask{_of_part(path)}"
    if path and mask is None:
        return np.ones(sum(sizes), bool)
    if is_hybrid(space) and (path or isinstance(mask, Mapping | tuple)):
        parts: Any = space.spaces
        if isinstance(space, spaces.Dict):
            keys, fits = [*parts], isinstance(mask, Mapping) and mask.keys() <= parts.keys()
        else:
            keys, fits = [*range(len(parts))], isinstance(mask, tuple) and len(mask) == len(parts)
        if not fits:
            allowed = f"a {type(space).__name__.lower()} with masks of {', '.join(map(repr, keys))}, or None for any"
            refuse_output(quantity, show(mask), allowed, env_index)
        given = mask if isinstance(mask, Mapping) else dict(enumerate(mask))
        return np.concatenate([_flatten(parts[key], given.get(key), env_index, (*path, key)) for key in keys])
    if not sizes:
        refuse_output(quantity, show(mask), "None or left out, because the part is a Box", env_index)
    array = as_real_array(mask)
    if array is None or not np.isin(array, (0, 1)).all():
        allowed = ", or have the structure of the action space" if is_hybrid(space) else ""
        refuse_output(quantity, show(mask), f"an array of booleans{allowed}", env_index)
    # sb3-contrib also accepts a mask with a row for each dimension.
    shapes = {(sum(sizes),)} | ({(len(sizes), sizes[0])} if len({*sizes}) == 1 and not is_hybrid(space) else set())
    if array.shape not in shapes:
        allowed = " or ".join(map(str, sorted(shapes, key=len)))
        refuse_output(quantity, f"an array of shape {array.shape}", f"of shape {allowed}", env_index)
    return array.ravel().astype(bool)


class MaskCheck:
    """Refuses masks that do not fit an action space."""

    def __init__(self, space: AnySpace):
        sizes = _sizes(space)
        self._space = space
        self._starts = np.cumsum([0, *sizes[:-1]])
        self.size = sum(sizes)
        """The number of booleans in a mask."""
        self._env: VecEnv | None = None
        self._ask: Callable[[], Sequence[Value]]

    def now(self, env: VecEnv | None) -> np.ndarray:
        """Ask environments for the masks of their current states; see :meth:`stack`."""
        assert env is not None
        if env is not self._env:
            self._env, (self._ask, _) = env, find_masks(env)
        try:
            with HELD:
                masks = self._ask()
        except (TypeError, WorkerError) as error:
            if "TypeError: " not in f"{type(error).__name__}: {error}":
                raise
            raise ArgumentError(f"{METHOD} must be a method without arguments that returns a mask: {error}") from error
        if len(masks) != env.num_envs:
            refuse_output("array of action masks", show(masks), f"one for each of {env.num_envs} environments", None)
        return self.stack(masks)

    def stack(self, masks: Sequence[Value]) -> np.ndarray:
        """Stack the masks of all environments as one array of booleans, shape ``(n_envs, size)``.

        :raises EnvOutputError: if a mask has a wrong shape or type, or allows nothing, naming its environment
        """
        # Nearly all environments return flat boolean arrays, which can be checked together.
        if not all(type(mask) is np.ndarray and mask.dtype == bool and mask.shape == (self.size,) for mask in masks):
            masks = [_flatten(self._space, mask, i) for i, mask in enumerate(masks)]
        stacked: np.ndarray = np.stack(masks)
        # Whether each dimension of each environment has an allowed action.
        if len(self._starts) == 1:
            allowed = stacked.any(axis=1, keepdims=True)
        else:
            allowed = np.logical_or.reduceat(stacked, self._starts, axis=1)
        if not allowed.all():
            env_index, dimension = (int(i) for i in np.argwhere(~allowed)[0])
            found = f"False for every action{self._name(dimension)}"
            refuse_output("action mask", found, "True for at least one", env_index)
        return stacked

    def _name(self, dimension: int) -> str:
        """Name a dimension with a mask."""
        for path, part in parts_of(self._space):
            n = len(_sizes(part))
            if dimension < n:
                return f"{f' in dimension {dimension}' if n > 1 else ''}{_of_part(path)}"
            dimension -= n
        raise IndexError(dimension)


def find_masks(env: Any) -> tuple[Callable[[], Sequence[Value]], bool]:
    """Find what returns the masks of all environments: the outermost ``action_masks``, or ``env_method`` for them.

    :return: and whether it is that of a vectorised environment or of a wrapper around it, and not of each single one
    """
    while not callable(getattr_static(env, METHOD, None)):
        if getattr(type(env), "env_method", None) is not VecEnvWrapper.env_method:
            return partial(env.env_method, METHOD), isinstance(env, VecEnvWrapper)
        env = env.venv
    return getattr(env, METHOD), True


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
    parts = np.split(MaskCheck(space).now(env), np.cumsum(sizes)[:-1], axis=1)
    drawn = np.stack([[space.np_random.choice(np.flatnonzero(row)) for row in part] for part in parts], axis=1)
    if not is_hybrid(space):
        return drawn.reshape(env.num_envs, *(space.shape or ())) + getattr(space, "start", 0)
    layout, columns = HybridLayout(space), iter(drawn.T)
    rows: list[np.ndarray] = []
    for part in layout.parts:
        if isinstance(part.space, spaces.Box):
            rows.extend(np.stack([part.space.sample().ravel() for _ in range(env.num_envs)], axis=1))
        else:
            rows.extend(next(columns) for _ in range(size_of(part.space)))
    return layout.for_envs(np.stack(rows, axis=1).astype(np.float32))


def check_env(env: VecEnv, policy: str, takes_masks: bool) -> None:
    """Check that environments have masks if a policy needs them, and warn if the policy ignores their masks.

    :raises ArgumentError: if masks are missing, naming the environment
    """
    if takes_masks and not (find_masks(env)[1] or has_attr(env, METHOD)):
        raise ArgumentError(
            f"{policy} needs action masks, but the environments have no {METHOD}(): add this method to them, or wrap "
            "each of them in sb3-contrib's ActionMasker"
        )
    is_sb3s = isinstance(getattr(env, "unwrapped", None), DummyVecEnv | SubprocVecEnv)  # Others may end at a question.
    if not takes_masks and is_sb3s and choices(env.action_space) is not None and has_attr(env, METHOD):
        warnings.warn(
            f"the environments have {METHOD}(), which {policy} ignores: to mask actions, use MaskableMlpPolicy, "
            "MaskableCnnPolicy or MaskableMultiInputPolicy, or MaskableMlpLstmPolicy and the like with a memory"
        )


def check_use(use_masking: bool | None, takes_masks: bool, argument: str) -> None:
    """Check that a policy takes action masks if a script of ``MaskablePPO`` uses them; ``None`` stands for either.

    :param argument: what says whether the script does, for the error message
    :raises ArgumentError: if it does not
    """
    if use_masking in (None, takes_masks):
        return
    wanted, made = ("Maskable", "") if use_masking else ("", "Maskable")
    raise ArgumentError(
        f"{argument}={use_masking}: here, the policy decides whether masks are used. Make the model with the policy "
        f"'{wanted}MlpPolicy' instead of '{made}MlpPolicy' ('{wanted}CnnPolicy', '{wanted}MultiInputPolicy', and so "
        "on). Nothing else in a script of MaskablePPO has to change"
    )


def check_given(masks: Value, takes_masks: bool, policy: str, space: AnySpace) -> dict[str, np.ndarray]:
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
    check, array = MaskCheck(space), as_real_array(masks)
    if isinstance(masks, Mapping | tuple) and is_hybrid(space):
        rows = [masks]
    elif array is not None and array.size > 0 and array.size % check.size == 0:
        rows = [*array.reshape(-1, check.size)]
    elif array is None and isinstance(masks, list | np.ndarray):
        rows = [*masks]
    else:
        refuse("action_masks", masks, f"{check.size} booleans for each observation")
    try:
        return {METHOD: check.stack(rows)}
    except EnvOutputError as error:
        of_one = f"the {error.quantity} of observation {error.env_index}"
        raise ArgumentError(f"action_masks: {of_one} is {error.problem}") from error
