"""Vectorised environments with no more than SB3's PPO needs, as adapters of other libraries are."""

from typing import Any, cast

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

N = 3


class Simulation:
    """Points on a line in a batch; an episode of environment i takes 4 + i steps, and every second is truncated."""

    num_envs = N
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.state = np.zeros((N, 2), np.float32)
        self.steps = np.zeros(N, int)
        self.episodes = np.zeros(N, int)

    def start(self) -> np.ndarray:
        self.steps[:] = 0
        self.state[:] = np.arange(2 * N, dtype=np.float32).reshape(N, 2) / N
        return self.state.copy()

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[dict]]:
        """Return observations, rewards, terminated, truncated and infos."""
        self.steps += 1
        self.state += np.stack([actions - 0.5, np.sin(self.state[:, 0])], axis=1).astype(np.float32)
        rewards = -np.abs(self.state[:, 0])
        done = self.steps >= 4 + np.arange(N)
        infos: list[dict] = [{} for _ in range(N)]
        truncated = done & (self.episodes % 2 == 1)
        for i in np.flatnonzero(done):
            infos[i] = {"terminal_observation": self.state[i].copy(), "TimeLimit.truncated": bool(truncated[i])}
            self.episodes[i] += 1
            self.steps[i] = 0
            self.state[i] = (0.1 * i, 0.3)
        return self.state.copy(), rewards, done & ~truncated, truncated, infos


class OnlyAbstract(VecEnv):
    """Has SB3's abstract methods, but those for single environments raise; so do adapters of procgen."""

    def __init__(self) -> None:
        self.simulation = Simulation()
        super().__init__(N, Simulation.observation_space, Simulation.action_space)

    def reset(self) -> np.ndarray:
        return self.simulation.start()

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        observations, rewards, terminated, truncated, infos = self.simulation.advance(self.actions)
        return observations, rewards, terminated | truncated, infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        if attr_name == "render_mode":  # SB3's constructor asks for it.
            return [None] * N
        raise NotImplementedError

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        raise NotImplementedError


class WithoutConstructor(OnlyAbstract):
    """Does not call SB3's constructor."""

    def __init__(self) -> None:
        self.simulation = Simulation()
        self.num_envs = N
        self.observation_space, self.action_space = Simulation.observation_space, Simulation.action_space
        self.render_mode = None


class Pool(Simulation):
    """Is not a ``VecEnv``, and has the methods of other libraries: reset returns infos, step_wait five values."""

    render_mode = None

    def reset(self) -> tuple[np.ndarray, dict]:
        return self.start(), {}

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        return self.advance(self.actions)

    def close(self) -> None:
        pass


class OverPool(VecEnvWrapper):
    """Is a wrapper around something that is not a ``VecEnv``, like the adapter in EnvPool's examples."""

    def __init__(self) -> None:
        super().__init__(cast(Any, Pool()))

    def reset(self) -> np.ndarray:
        return cast(Any, self.venv.reset())[0]

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = actions

    def step_wait(self) -> Any:
        observations, rewards, terminated, truncated, infos = cast(Any, self.venv).advance(self.actions)
        return observations, rewards, terminated | truncated, infos


class TensorSimulation:
    """The simulation on tensors. Like those of Isaac, its ``envs`` are no environments."""

    envs = (0, 1, 2)

    def __init__(self) -> None:
        self.inner = Simulation()

    def reset(self) -> tuple[dict[str, th.Tensor], dict]:
        return {"policy": th.from_numpy(self.inner.start())}, {}

    def step(self, actions: th.Tensor) -> Any:
        observations, *others, infos = self.inner.advance(actions.numpy())
        return {"policy": th.from_numpy(observations)}, *map(th.from_numpy, others), infos


class OfTensors(VecEnv):
    """Converts between arrays and the tensors of a simulation, like Isaac Lab's adapter."""

    def __init__(self) -> None:
        self.env = TensorSimulation()
        super().__init__(N, Simulation.observation_space, Simulation.action_space)

    @property
    def unwrapped(self) -> Any:
        return self.env

    def seed(self, seed: int | None = None) -> list[int | None]:
        return [seed] * N

    def reset(self) -> np.ndarray:
        return self.env.reset()[0]["policy"].detach().cpu().numpy()

    def step_async(self, actions: np.ndarray) -> None:
        self._async_actions = th.from_numpy(np.asarray(actions))

    def step_wait(self) -> Any:
        observations, rewards, terminated, truncated, infos = self.env.step(self._async_actions)
        dones = (terminated | truncated).detach().cpu().numpy()
        return observations["policy"].numpy(), rewards.detach().cpu().numpy(), dones, infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.env, attr_name)] * N

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("Setting attributes is not supported.")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> Any:
        return getattr(self.env, method_name)(*method_args, indices=indices, **method_kwargs)

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False]


MINIMAL: list[Any] = [OnlyAbstract, WithoutConstructor, OverPool, OfTensors]
