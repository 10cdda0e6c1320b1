"""Evaluation of policies that take action masks, with or without a memory."""

from typing import Any, ClassVar

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.type_aliases import GymEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from sb3_ppo_variants.callbacks import set_reads
from sb3_ppo_variants.collector import Reads
from sb3_ppo_variants.envs.masks import find_masks

__all__ = ["MaskedEvalCallback", "WithMasks"]


class WithMasks:
    """Predicts with the masks of environments, so that SB3's ``evaluate_policy`` can evaluate a maskable policy.

    ``evaluate_policy(WithMasks(model, env), env)`` keeps the memory of a policy, unlike ``evaluate_policy`` of
    sb3-contrib, which passes ``state=None`` at every step if it passes masks. All other attributes are the model's.

    :param model: a model whose policy takes masks
    :param env: the environments that it is evaluated in, or a single one
    """

    def __init__(self, model: BaseAlgorithm, env: GymEnv):
        self._model: Any = model  # SB3 does not annotate the masks.
        self._env = env if isinstance(env, VecEnv) else DummyVecEnv([lambda: env])  # As evaluate_policy does.

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Predict the actions for the current observations of the environments; see the model."""
        return self._model.predict(*args, action_masks=find_masks(self._env)[0](), **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "_model":  # A copy does not have it yet.
            raise AttributeError(name)
        return getattr(self._model, name)


class MaskedEvalCallback(EvalCallback):
    """SB3's ``EvalCallback`` for policies that take action masks, with or without a memory.

    The arguments are the same. ``MaskableEvalCallback`` of sb3-contrib is for policies without a memory.
    """

    use_masking: ClassVar[bool] = True

    def _on_step(self) -> bool:
        model = self.model
        self.model = WithMasks(model, self.eval_env)  # type: ignore[assignment]
        try:
            return super()._on_step()
        finally:
            self.model = model


set_reads(Reads.NOTHING, MaskedEvalCallback)
