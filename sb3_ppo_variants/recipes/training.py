"""Trains, saves, loads and evaluates the model of a recipe."""

import os
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, unwrap_vec_normalize

from sb3_ppo_variants.arguments import COUNT
from sb3_ppo_variants.callbacks import tell
from sb3_ppo_variants.collector import Told
from sb3_ppo_variants.envs.making import is_atari, spec_of
from sb3_ppo_variants.envs.masks import check_env
from sb3_ppo_variants.envs.outputs import Info
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.evaluation import WithMasks
from sb3_ppo_variants.policies.kinds import kind_of_class
from sb3_ppo_variants.ppo import PPOBase
from sb3_ppo_variants.processes import current
from sb3_ppo_variants.recipes.recipe import Recipe

EVALUATION_SEED = 10_000
# The names that SB3's make_vec_env gives to monitor files.
MONITOR_FILES = "[0-9]*.monitor.csv"
STATISTICS_FILE = "vecnormalize.pkl"


class Episodes(BaseCallback):
    """Records the return of every episode and the timestep at which it ended."""

    def __init__(self) -> None:
        super().__init__()
        self.ends: list[int] = []
        self.returns: list[float] = []

    def _on_step(self) -> bool:
        self.note(self.num_timesteps, self.locals["infos"])
        return True

    def note(self, step: int, infos: list[Info]) -> None:
        """Record the episodes that ended in a step, as its infos report them."""
        for info in infos:
            if "episode" in info:
                self.ends.append(step)
                self.returns.append(float(info["episode"]["r"]))


tell(Told.ENVS, Episodes)


def train(
    made: Recipe,
    folder: str | os.PathLike[str],
    seed: int | None = None,
    timesteps: int | None = None,
    callback: MaybeCallback = None,
    progress_bar: bool = False,
) -> BaseAlgorithm:
    """Train a model, and save it with the statistics of its ``VecNormalize``.

    All files replace those of an earlier run in the folder. An error or Ctrl-C during training saves what was trained,
    and is raised again. The environments are closed in the end. Of several processes that train together, only rank 0
    writes to the folder.

    :param folder: folder for ``model.zip``, ``vecnormalize.pkl`` and the monitor files, ``*.monitor.csv``
    :param timesteps: environment steps; ``None`` uses the recipe's
    :param callback: callback or callbacks to call during training
    :param progress_bar: whether to show progress (needs tqdm and rich)
    """
    # Ranks other than 0 write to a folder that nobody reads.
    is_first = current(made.arguments.get("data_parallel", "auto")).rank == 0
    with nullcontext(folder) if is_first else TemporaryDirectory() as name:
        into = Path(name)
        model = build(made, seed, monitor_dir=str(into))
        try:
            for path in into.glob(MONITOR_FILES):
                if int(path.name.partition(".")[0]) >= made.n_envs:
                    path.unlink()
            model.learn(made.n_timesteps if timesteps is None else timesteps, callback, progress_bar=progress_bar)
        finally:
            if model.num_timesteps > 0:
                save(model, into)
            model.get_env().close()  # type: ignore[union-attr]
    return model


def build(made: Recipe, seed: int | None = None, monitor_dir: str | None = None) -> BaseAlgorithm:
    """Create the recipe's model and environment, both with the same seed.

    :raises ArgumentError: if the environment lacks the action masks that the policy needs
    """
    env = made.make_env(seed=seed, monitor_dir=monitor_dir)
    try:
        model = made.algorithm(env=env, seed=seed, **made.arguments)
        policy = type(model.policy)
        if kind_of_class(policy).takes_masks:
            check_env(env, policy.__name__, takes_masks=True)
        return model
    except BaseException:
        env.close()
        raise


def save(model: BaseAlgorithm, folder: str | os.PathLike[str]) -> None:
    """Save a model with the statistics of its ``VecNormalize``, for :func:`load`, in place of earlier files."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "model")
    statistics, file = model.get_vec_normalize_env(), folder / STATISTICS_FILE
    if statistics is not None:
        statistics.save(str(file))
    else:
        file.unlink(missing_ok=True)


def load(
    made: Recipe, folder: str | os.PathLike[str], seed: int | None = None, weights_only: bool = False
) -> tuple[BaseAlgorithm, VecEnv]:
    """Load the model that :func:`train` saved, with an environment to evaluate it in, normalised as in training.

    :param folder: the folder that was passed to :func:`train`
    :param weights_only: whether to unpickle nothing. Set this for files that you do not trust
    :raises ArgumentError: if the run was normalised and the recipe does not normalise, or the other way round; and with
        ``weights_only``, if the algorithm is not of this package, or the observations are normalised
    """
    if weights_only and not issubclass(made.algorithm, PPOBase):
        raise ArgumentError(f"weights_only=True needs an algorithm of this package, not {made.algorithm.__name__}")
    statistics, normalises = Path(folder, STATISTICS_FILE), made.normalize is not None
    if Path(folder, "model.zip").exists() and statistics.exists() != normalises:
        has, does = ("has no", "normalises") if normalises else ("has a", "does not normalise")
        raise ArgumentError(f"{folder} {has} {STATISTICS_FILE}, but this recipe {does}: pass the recipe of the run")
    env = made.make_env(n_envs=1, seed=seed, training=False)
    normalised = unwrap_vec_normalize(env)
    if normalised is not None and normalised.norm_obs:
        if weights_only:
            raise ArgumentError(f"weights_only=True unpickles nothing, but {statistics} is a pickle")
        normalised.obs_rms = VecNormalize.load(str(statistics), normalised.venv).obs_rms
    safely: dict[str, Any] = {"weights_only": True} if weights_only else {}
    return made.algorithm.load(Path(folder, "model"), env=env, **safely), env


def evaluate(made: Recipe, folder: str | os.PathLike[str], episodes: int, weights_only: bool = False) -> np.ndarray:
    """Evaluate the saved model in new episodes.

    The policy is deterministic, except in Atari games, as in the RL Zoo.

    :param folder: the folder that was passed to :func:`train`
    :param weights_only: see :func:`load`
    :return: the return of each episode, shape ``(episodes,)``
    :raises ArgumentError: if the number of episodes is not an integer >= 1, or :func:`load` raises it
    """
    COUNT.check("episodes", episodes)
    model, env = load(made, folder, EVALUATION_SEED, weights_only)
    predictor = WithMasks(model, env) if kind_of_class(type(model.policy)).takes_masks else model
    is_deterministic = not is_atari(spec_of(made.env_id))
    returns, _ = evaluate_policy(predictor, env, episodes, is_deterministic, return_episode_rewards=True)
    env.close()
    return np.array(returns)
