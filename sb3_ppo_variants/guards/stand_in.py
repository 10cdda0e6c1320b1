"""An environment that stands in for another one, which stays unchanged."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from sb3_ppo_variants.guards.capabilities import inner
from sb3_ppo_variants.guards.steps import Steps


def _delegated(path: str) -> Any:
    return property(attrgetter(path))


class StandIn(VecEnv):
    """A vectorised environment that steps and resets differently from the environment it stands in for.

    Everything else is delegated, and attributes are set on that environment. Copying or pickling a stand-in copies or
    pickles that environment, and ``isinstance`` finds it to be of the same classes. A stand-in is not a
    ``VecEnvWrapper``, because SB3 expects the environments for training and evaluation to have the same wrappers.
    """

    _inner: VecEnv

    # VecEnv.__init__ is not called: it would set attributes that belong to the environment.
    def __init__(self, env: VecEnv, steps: Steps):
        object.__setattr__(self, "_inner", env)
        object.__setattr__(self, "_own_steps", steps)

    step = _delegated("_own_steps.step")
    step_async = _delegated("_own_steps.step_async")
    step_wait = _delegated("_own_steps.step_wait")
    reset = _delegated("_own_steps.reset")

    # VecEnv defines these, so __getattr__ is not called for them.
    __class__ = _delegated("_inner.__class__")
    close = _delegated("_inner.close")
    env_is_wrapped = _delegated("_inner.env_is_wrapped")
    env_method = _delegated("_inner.env_method")
    get_attr = _delegated("_inner.get_attr")
    get_images = _delegated("_inner.get_images")
    getattr_depth_check = _delegated("_inner.getattr_depth_check")
    has_attr = _delegated("_inner.has_attr")
    num_envs = _delegated("_inner.num_envs")
    render = _delegated("_inner.render")
    seed = _delegated("_inner.seed")
    set_attr = _delegated("_inner.set_attr")
    set_options = _delegated("_inner.set_options")
    unwrapped = _delegated("_inner.unwrapped")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._inner, name, value)

    def __reduce__(self) -> tuple[Callable[[VecEnv], VecEnv], tuple[VecEnv]]:
        return original, (self._inner,)


def original(env: VecEnv) -> VecEnv:
    """Return the environment behind a stand-in; any other environment is returned as it is."""
    return env._inner if isinstance(env, StandIn) else env


@contextmanager
def standing_in(model: BaseAlgorithm, make_steps: Callable[[VecEnv], Steps]) -> Iterator[VecEnv]:
    """Replace a model's environment, below all wrappers, with a stand-in while the context is active.

    :param make_steps: creates the stand-in's steps from the environment without wrappers, which is yielded
    """
    place = _innermost(model)
    present = getattr(*place)
    # If a callback trains a second model on the environment, the stand-in of the first one is still in place.
    env = original(present)
    stand_in = StandIn(env, make_steps(env))
    setattr(*place, stand_in)
    try:
        yield env
    finally:
        # A callback may have put another environment there, or new wrappers around the stand-in.
        for owner, name in (place, _innermost(model)):
            if getattr(owner, name) is stand_in:
                setattr(owner, name, present)


def _innermost(model: BaseAlgorithm) -> tuple[BaseAlgorithm | VecEnvWrapper, str]:
    """Return the owner and the name of the attribute that is the environment of a model below all wrappers.

    A wrapper around something that is not a ``VecEnv`` is that environment.
    """
    owner: Any = model
    name = "env"
    while inner(getattr(owner, name)) is not None:
        owner, name = getattr(owner, name), "venv"
    return owner, name
