"""The state that SB3's callbacks keep from step to step, so that a resumed run can restore it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    EvalCallback,
    EventCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
)

from sb3_ppo_variants.saving import plain
from sb3_ppo_variants.saving.environments import seed_episodes

EVALUATIONS = ("evaluations_timesteps", "evaluations_results", "evaluations_length", "evaluations_successes")
# The attributes of each class that hold its state. They apply to subclasses too.
REMEMBERED: Mapping[type, Sequence[str]] = {
    BaseCallback: ("n_calls",),
    EvalCallback: ("best_mean_reward", "last_mean_reward", *EVALUATIONS),
    EveryNTimesteps: ("last_time_trigger",),
    StopTrainingOnMaxEpisodes: ("n_episodes",),
    StopTrainingOnNoModelImprovement: ("last_best_mean_reward", "no_improvement_evals"),
}
# Maps the name of each class to the states of its callbacks, in their order.
Memories: TypeAlias = dict[str, list[dict[str, Any]]]


def memories_of(callback: BaseCallback) -> Memories:
    """Return the state of a callback and of the callbacks inside it, leaving out values without a plain form."""
    memories: Memories = defaultdict(list)
    for one in _with_children(callback):
        names = [name for cls, names in REMEMBERED.items() if isinstance(one, cls) for name in names]
        values = {name: getattr(one, name) for name in names}
        memories[type(one).__qualname__].append({name: v for name, v in values.items() if plain.is_plain(v)})
    return dict(memories)


def remind(callback: BaseCallback, memories: Memories) -> None:
    """Restore the state of a callback and of the callbacks inside it. A callback without saved state starts afresh."""
    left = {name: iter(of_class) for name, of_class in memories.items()}
    for one in _with_children(callback):
        for name, value in next(left.get(type(one).__qualname__, iter(())), {}).items():
            setattr(one, name, value)


def seed_evaluations(callback: BaseCallback, seed: int, num_timesteps: int) -> None:
    """Seed the next evaluation of each ``EvalCallback`` with a number that depends only on the seed and the step."""
    evaluations = [one for one in _with_children(callback) if isinstance(one, EvalCallback)]
    seeds = np.random.SeedSequence([seed, num_timesteps, len(evaluations)]).generate_state(len(evaluations))
    for evaluation, own_seed in zip(evaluations, seeds, strict=True):
        seed_episodes(evaluation.eval_env, int(own_seed) >> 1)  # Some environments only accept 31 bits.


def _with_children(callback: BaseCallback) -> Iterator[BaseCallback]:
    yield callback
    children: list[BaseCallback | None] = [*callback.callbacks] if isinstance(callback, CallbackList) else []
    if isinstance(callback, EvalCallback):
        children.append(callback.callback_on_new_best)
    if isinstance(callback, EventCallback):
        children.append(callback.callback)
    for child in children:
        if child is not None:
            yield from _with_children(child)
