"""Refuses methods of subclasses that nothing would call."""

from collections.abc import Mapping

from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

OBJECTIVE = "define _objective, or use PPOCustom"
# What to do instead of overriding a method. Earlier versions called the first two, and SB3 calls the last.
INSTEAD: Mapping[str, str] = {
    "_policy_loss": OBJECTIVE,
    "_coefficients": OBJECTIVE,
    "_update_learning_rate": "pass a schedule as learning_rate",
}


def check_hooks(cls: type[OnPolicyAlgorithm]) -> None:
    """Check that a class overrides no method that is not called.

    :raises TypeError: if it does, naming the method and what to do instead
    """
    for name, instead in INSTEAD.items():
        if getattr(cls, name, None) is not getattr(OnPolicyAlgorithm, name, None):
            raise TypeError(f"{cls.__name__}.{name} is not called: {instead}")
