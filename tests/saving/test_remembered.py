"""SB3's callbacks keep their counts and their state when a run is resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from resuming import KillAt, Killed, assert_exact, pendulums
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    EvalCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from helpers import VARIANTS, small
from sb3_ppo_variants import ExactCheckpointCallback, PPOClip
from sb3_ppo_variants.errors import ArgumentError


def evaluation(folder: Path | None = None, env: VecEnv | None = None, **arguments: Any) -> EvalCallback:
    place = None if folder is None else str(folder)
    arguments = {"eval_freq": 13, "n_eval_episodes": 3, "verbose": 0, **arguments}
    return EvalCallback(env or pendulums(), log_path=place, best_model_save_path=place, **arguments)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kill_at", [40, 150, 195])
@pytest.mark.parametrize("wrap", [lambda env: env, VecNormalize])
def test_all_that_is_logged_beside_evaluations_is_equal(wrap: Any, kill_at: int, first: bool, tmp_path: Path) -> None:
    def others() -> list[Any]:
        return [evaluation(env=wrap(pendulums()), deterministic=first)]

    make_env = lambda: wrap(pendulums())  # noqa: E731
    _, logged = assert_exact(lambda: small(env=make_env()), make_env, tmp_path, 200, 64, kill_at, others)
    assert sum("eval/mean_reward" in values for values in logged.values()) == 8


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_better_model_is_not_overwritten(variant: Any, tmp_path: Path) -> None:
    class Falling(gym.Wrapper):
        """Gives rewards that decrease with every episode of any environment."""

        episodes = 0

        def step(self, action: Any) -> Any:
            observation, _, terminated, truncated, info = self.env.step(action)
            Falling.episodes += terminated or truncated
            return observation, -float(Falling.episodes), terminated, truncated, info

    def callback() -> list[BaseCallback]:
        env = make_vec_env(lambda: Falling(gym.wrappers.TimeLimit(gym.make("Pendulum-v1"), 10)), 2)
        return [evaluation(tmp_path / "eval", env), ExactCheckpointCallback(64, tmp_path / "ckpt")]

    first = callback()
    with pytest.raises(Killed):
        small(variant, pendulums()).learn(300, callback=[*first, KillAt(200)])
    best = variant.load(tmp_path / "eval" / "best_model").num_timesteps
    assert best == 26
    model = variant.resume(tmp_path / "ckpt", pendulums())
    again = callback()
    model.learn(model.remaining_timesteps, callback=again, reset_num_timesteps=False)
    assert again[0].best_mean_reward == first[0].best_mean_reward  # type: ignore[attr-defined]
    assert variant.load(tmp_path / "eval" / "best_model").num_timesteps == best
    # The history is complete, including the evaluations before the kill.
    steps = np.load(tmp_path / "eval" / "evaluations.npz")["timesteps"]
    assert list(steps) == list(range(26, 320, 26))


class Triggered(BaseCallback):
    """Records the steps at which it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.at: list[tuple[int, int]] = []

    def _on_step(self) -> bool:
        self.at.append((self.n_calls, self.num_timesteps))
        return True


def cut_and_whole(make: Callable[[Path], BaseCallback], tmp_path: Path, total: int = 320) -> list[tuple[int, Any]]:
    """Run a callback without and with an interruption, and return the final step and the callback of each run."""
    ends = []
    for name, kill_at in (("whole", 10**6), ("cut", 150)):
        folder = tmp_path / name
        model = small(env=pendulums())
        callback = make(folder)
        try:
            model.learn(total, callback=[ExactCheckpointCallback(64, folder / "ckpt"), callback, KillAt(kill_at)])
        except Killed:
            model, callback = PPOClip.resume(folder / "ckpt", pendulums()), make(folder)
            again = [ExactCheckpointCallback(64, folder / "ckpt"), CallbackList([callback])]
            model.learn(model.remaining_timesteps, callback=again, reset_num_timesteps=False)
        ends.append((model.num_timesteps, callback))
    return ends


STOPPING: dict[str, Callable[[Path], BaseCallback]] = {
    "episodes": lambda folder: StopTrainingOnMaxEpisodes(11),
    "no improvement": lambda _: evaluation(callback_after_eval=StopTrainingOnNoModelImprovement(5, 1), eval_freq=10),
}


@pytest.mark.parametrize("case", STOPPING)
def test_what_stops_training_stops_it_at_the_same_step(case: str, tmp_path: Path) -> None:
    (whole, _), (cut, _) = cut_and_whole(STOPPING[case], tmp_path)
    assert whole == cut
    assert 150 < whole < 320


class Remembering(Triggered):
    """Keeps its steps when a run is resumed."""

    remembered: Any = ("at",)


def test_a_callback_of_ones_own_keeps_what_it_names(tmp_path: Path) -> None:
    (_, whole), (_, cut) = cut_and_whole(lambda folder: Remembering(), tmp_path)
    assert cut.at == whole.at == [(call, 2 * call) for call in range(1, 161)]


def test_what_a_callback_cannot_keep_is_refused_before_the_first_step(tmp_path: Path) -> None:
    callback, model = Remembering(), small(env=pendulums())
    callback.remembered = ("at", "model")
    with pytest.raises(ArgumentError, match=r"Remembering\.model is a PPOClip, which a checkpoint cannot hold"):
        model.learn(64, callback=[callback, ExactCheckpointCallback(64, tmp_path)])
    assert model.num_timesteps == 0


def test_what_is_called_every_so_many_steps(tmp_path: Path) -> None:
    for make in (lambda _: EveryNTimesteps(50, Triggered()), lambda _: LogEveryNTimesteps(50)):
        (_, whole), (_, cut) = cut_and_whole(make, tmp_path / str(id(make)))
        assert cut.last_time_trigger == whole.last_time_trigger > 150
        if isinstance(whole.callback, Triggered):
            late = [call for call in whole.callback.at if call[1] > 128]
            assert cut.callback.at == late


def test_callbacks_that_come_and_go(tmp_path: Path) -> None:
    checkpoints = ExactCheckpointCallback(64, tmp_path)
    small(env=pendulums()).learn(200, callback=[Triggered(), evaluation(), checkpoints])
    model = PPOClip.resume(tmp_path, pendulums())
    new, alike = evaluation(), [Triggered(), Triggered()]
    model.learn(64, callback=[*alike, ExactCheckpointCallback(64, tmp_path), new], reset_num_timesteps=False)
    assert new.n_calls == alike[0].n_calls == 96 + 32
    assert alike[1].n_calls == 32  # The checkpoint contains only one such callback.
