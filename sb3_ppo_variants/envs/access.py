"""Attributes and methods of the environments in a vector environment, as far as it lets one reach them."""

import re
from abc import ABC, abstractmethod
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from stable_baselines3.common.env_util import is_wrapped

from sb3_ppo_variants.errors import refuse


class Access(ABC):
    """How to reach the environments; ``indices`` says which.

    :param env: the vector environment, without wrappers
    """

    takes_any_seed = True

    def __init__(self, env: Any):
        self.env = env

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether all have the attribute."""

    @abstractmethod
    def get(self, name: str, indices: list[int]) -> list[Any]:
        """An attribute of each."""

    @abstractmethod
    def set(self, name: str, value: Any, indices: list[int]) -> None:
        """Set an attribute of each to the value."""

    @abstractmethod
    def call(self, name: str, indices: list[int], args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        """Call a method of each."""

    @abstractmethod
    def is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: list[int]) -> list[bool]:
        """Whether each has a wrapper of the class."""

    def _need_all(self, indices: list[int]) -> None:
        if indices != list(range(self.env.num_envs)):
            refuse("indices", indices, f"None: {type(self.env).__name__} reaches all environments at once")


class InProcess(Access):
    """The environments of a ``SyncVectorEnv``."""

    def has(self, name: str) -> bool:
        """See the base class."""
        return all(env.has_wrapper_attr(name) for env in self.env.envs)

    def get(self, name: str, indices: list[int]) -> list[Any]:
        """See the base class. gymnasium's own ``get_attr`` would call what can be called."""
        return [self.env.envs[i].get_wrapper_attr(name) for i in indices]

    def set(self, name: str, value: Any, indices: list[int]) -> None:
        """See the base class."""
        for i in indices:
            self.env.envs[i].set_wrapper_attr(name, value)

    def call(self, name: str, indices: list[int], args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        """See the base class."""
        return [self.env.envs[i].get_wrapper_attr(name)(*args, **kwargs) for i in indices]

    def is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: list[int]) -> list[bool]:
        """See the base class."""
        return [is_wrapped(self.env.envs[i], wrapper_class) for i in indices]


class InWorkers(Access):
    """The environments of an ``AsyncVectorEnv``, which asks all of its workers or none."""

    def has(self, name: str) -> bool:
        """See the base class."""
        return all(self.env.call("has_wrapper_attr", name))

    def _need(self, name: str) -> None:
        # A worker that is asked for what it does not have ends.
        if not self.has(name):
            raise AttributeError(f"the environments of {self.env} have no attribute {name!r}")

    def get(self, name: str, indices: list[int]) -> list[Any]:
        """See the base class. What can be called is called, as gymnasium does."""
        self._need(name)
        values = self.env.get_attr(name)
        return [values[i] for i in indices]

    def set(self, name: str, value: Any, indices: list[int]) -> None:
        """See the base class."""
        self._need_all(indices)
        # A list is taken as a value for each.
        self.env.set_attr(name, [value] * self.env.num_envs)

    def call(self, name: str, indices: list[int], args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        """See the base class."""
        self._need_all(indices)
        self._need(name)
        return list(self.env.call(name, *args, **kwargs))

    def is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: list[int]) -> list[bool]:
        """See the base class. A worker does not say more of its wrappers than their names."""
        names = [re.findall(r"<(\w+)", text) for text in self.env.call("__str__")]
        return [wrapper_class.__name__ in names[i] for i in indices]


class Whole(Access):
    """An environment of many states, which has no environments in it: what it has itself belongs to all."""

    takes_any_seed = False

    def has(self, name: str) -> bool:
        """See the base class."""
        return hasattr(self.env, name)

    def get(self, name: str, indices: list[int]) -> list[Any]:
        """See the base class."""
        return [getattr(self.env, name)] * len(indices)

    def set(self, name: str, value: Any, indices: list[int]) -> None:
        """See the base class.

        :raises AttributeError: if there is no such attribute, since a new one would have no effect
        """
        self._need_all(indices)
        if not self.has(name):
            raise AttributeError(f"{type(self.env).__name__} has no attribute {name!r}")
        setattr(self.env, name, value)

    def call(self, name: str, indices: list[int], args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        """See the base class.

        :raises NotImplementedError: always
        """
        raise NotImplementedError(f"{type(self.env).__name__} has no environments of their own to call {name}() of")

    def is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: list[int]) -> list[bool]:
        """See the base class."""
        return [False] * len(indices)


def access(env: VectorEnv) -> Access:
    """How to reach the environments in it."""
    inner = env.unwrapped
    if isinstance(inner, SyncVectorEnv):
        return InProcess(inner)
    return InWorkers(inner) if isinstance(inner, AsyncVectorEnv) else Whole(inner)
