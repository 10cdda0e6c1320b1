"""What the variants share: arguments, the training loop, logging."""

from sb3_ppo_variants.base.algorithm import PPOBase
from sb3_ppo_variants.base.arguments import NON_NEGATIVE, POSITIVE, Rule, given, number
from sb3_ppo_variants.base.coefficients import Coefficients

__all__ = ["NON_NEGATIVE", "POSITIVE", "Coefficients", "PPOBase", "Rule", "given", "number"]
