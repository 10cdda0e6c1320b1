"""Search spaces for ``-optimize``."""

from collections.abc import Callable

from optuna import Trial
from rl_zoo3.hyperparams_opt import convert_onpolicy_params

from sb3_ppo_variants.recipes.environments import Hyperparameters

# The arguments of each objective. The paper's values lie in the middle of each range.
OBJECTIVES: dict[str, Callable[[Trial], Hyperparameters]] = {
    "ppo_clip": lambda trial: {"clip_range": trial.suggest_categorical("clip_range", [0.1, 0.2, 0.3, 0.4])},
    "ppo_adaptive_kl": lambda trial: {
        "desired_kl": trial.suggest_float("desired_kl", 0.001, 0.1, log=True),
        "kl_coef": trial.suggest_float("kl_coef", 0.1, 10.0, log=True),
    },
    "ppo_fixed_kl": lambda trial: {"kl_coef": trial.suggest_float("kl_coef", 0.1, 30.0, log=True)},
    "ppo_unclipped": lambda trial: {},
    "ppo_custom": lambda trial: {},
}


def sampler(algorithm: str) -> Callable[..., Hyperparameters]:
    """Return the sampler of an algorithm's hyperparameters, which ignores rl_zoo3's arguments other than the trial."""
    return lambda trial, *_: convert_onpolicy_params({**_suggest_shared(trial), **OBJECTIVES[algorithm](trial)})


def _suggest_shared(trial: Trial) -> Hyperparameters:
    """Suggest the arguments that all variants share, with the names and ranges of rl_zoo3's PPO.

    rl_zoo3's own sampler would add a clip range, which only one variant has.
    """
    suggested: Hyperparameters = {
        "batch_size_pow": trial.suggest_int("batch_size_pow", 2, 10),
        "n_steps_pow": trial.suggest_int("n_steps_pow", 5, 12),
        "one_minus_gamma": trial.suggest_float("one_minus_gamma", 0.0001, 0.03, log=True),
        "one_minus_gae_lambda": trial.suggest_float("one_minus_gae_lambda", 0.0001, 0.1, log=True),
        "learning_rate": trial.suggest_float("learning_rate", 1e-5, 0.002, log=True),
        "ent_coef": trial.suggest_float("ent_coef", 1e-8, 0.1, log=True),
        "n_epochs": trial.suggest_categorical("n_epochs", [1, 5, 10, 20]),
        "max_grad_norm": trial.suggest_float("max_grad_norm", 0.3, 2.0),
        "net_arch": trial.suggest_categorical("net_arch", ["tiny", "small", "medium"]),
        "activation_fn": trial.suggest_categorical("activation_fn", ["tanh", "relu"]),
    }
    # rl_zoo3 shows these attributes of a trial.
    trial.set_user_attr("gamma", 1 - suggested["one_minus_gamma"])
    for name in ("n_steps", "batch_size"):
        trial.set_user_attr(name, 2 ** suggested[f"{name}_pow"])
    return suggested
