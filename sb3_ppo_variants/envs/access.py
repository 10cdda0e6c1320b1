"""Access to attributes and methods of the environments inside a vector environment, as far as its kind allows it."""

import re
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState
from stable_baselines3.common.env_util import is_wrapped

from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.guards.workers import Exchange, ended


class Access:
    """Access to a vector environment that contains no single environments: all share its own attributes."""

    takes_any_seed = False

    def __init__(self, env: VectorEnv):
        self.env = env

    def begin(self) -> None:
        """Prepare for a command to the environments, because an interrupt may have cut the last one short."""

    def closing(self) -> dict[str, Any]:
        """Return the arguments for the vector environment's ``close``."""
        return {}

    def has(self, name: str) -> bool:
        """Check whether all environments have the attribute."""
        return hasattr(self.env, name)

    def get(self, name: str, indices: list[int]) -> list[Any]:
        """Return the attribute of each environment."""
        return [getattr(self.env, name)] * len(indices)

    def set(self, name: str, value: Any, indices: list[int]) -> None:
        """Set the attribute of each environment to the value."""
        self._need_all(indices)
        self._need(name)  # A new attribute would have no effect.
        setattr(self.env, name, value)

    def call(self, name: str, indices: list[int], args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        """Call the method of each environment."""
        raise NotImplementedError(f"{type(self.env).__name__} has no single environments to call {name}() on")

    def is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: list[int]) -> list[bool]:
        """Check which environments are wrapped with the class."""
        return [False] * len(indices)

    def _need(self, name: str) -> None:
        if not self.has(name):
            raise AttributeError(f"{self.env} has no attribute {name!r}")

    def _need_all(self, indices: list[int]) -> None:
        if indices != list(range(self.env.num_envs)):
            kind = type(self.env).__name__
            raise ArgumentError(f"indices={indices} must be None: {kind} can only reach all environments at once")


class _InProcess(Access):
    """Access to the environments of a ``SyncVectorEnv``, whose own ``get_attr`` would call callable attributes."""

    env: SyncVectorEnv
    takes_any_seed = True

    def has(self, name: str) -> bool:
        return all(env.has_wrapper_attr(name) for env in self.env.envs)

    def get(self, name: str, indices: list[int]) -> list[Any]:
        return [self.env.envs[i].get_wrapper_attr(name) for i in indices]

    def set(self, name: str, value: Any, indices: list[int]) -> None:
        for i in indices:
            self.env.envs[i].set_wrapper_attr(name, value)

    def call(self, name: str, indices: list[int], args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        return [method(*args, **kwargs) for method in self.get(name, indices)]

    def is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: list[int]) -> list[bool]:
        return [is_wrapped(self.env.envs[i], wrapper_class) for i in indices]


class _InWorkers(Access):
    """Access to the environments of an ``AsyncVectorEnv``, which can only query all of its workers at once.

    A worker exits if it is asked for an attribute that its environment lacks. Its own ``get_attr`` would call callable
    attributes.
    """

    env: AsyncVectorEnv
    takes_any_seed = True

    def __init__(self, env: AsyncVectorEnv):
        super().__init__(env)
        pipes: Any = env.parent_pipes
        exchanges: Any = [
            pipe if isinstance(pipe, Exchange) else Exchange(pipe, i, process)
            for i, (pipe, process) in enumerate(zip(pipes, env.processes, strict=True))
        ]
        env.parent_pipes = exchanges

    def begin(self) -> None:
        self.env._state = AsyncState.DEFAULT
        pipes: Any = self.env.parent_pipes
        if None in pipes:  # gymnasium has closed the pipe of a worker that raised an error.
            index = pipes.index(None)
            raise ended(index, self.env.processes[index])

    def closing(self) -> dict[str, Any]:
        self.env._state = AsyncState.DEFAULT
        pipes: Any = self.env.parent_pipes
        useless = any(pipe is not None and pipe.useless for pipe in pipes)
        all_alive = all(process.is_alive() for process in self.env.processes)
        return {} if all_alive and not useless else {"terminate": True}

    def has(self, name: str) -> bool:
        self.begin()
        return all(self.env.call("has_wrapper_attr", name))

    def get(self, name: str, indices: list[int]) -> list[Any]:
        self._need(name)
        values = self.env.call("get_wrapper_attr", name)
        return [values[i] for i in indices]

    def set(self, name: str, value: Any, indices: list[int]) -> None:
        self._need_all(indices)
        self.begin()
        # set_attr takes a list as one value per environment.
        self.env.set_attr(name, [value] * self.env.num_envs)

    def call(self, name: str, indices: list[int], args: tuple, kwargs: dict[str, Any]) -> list[Any]:
        self._need_all(indices)
        self._need(name)
        return list(self.env.call(name, *args, **kwargs))

    def is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: list[int]) -> list[bool]:
        # Wrappers cannot be sent between processes, but their names can.
        self.begin()
        names = [re.findall(r"<(\w+)", text) for text in self.env.call("__str__")]
        return [wrapper_class.__name__ in names[i] for i in indices]


def access(env: VectorEnv) -> Access:
    """Return the access to the environments in a vector environment."""
    inner = env.unwrapped
    if isinstance(inner, SyncVectorEnv):
        return _InProcess(inner)
    return _InWorkers(inner) if isinstance(inner, AsyncVectorEnv) else Access(inner)
