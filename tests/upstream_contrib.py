"""Run sb3-contrib's own tests of masked and recurrent PPO with one of our classes in the place of both.

    python tests/upstream_contrib.py PPOClip [pytest arguments]

The tests are taken from the source archive of the installed version, outside the repository. This file is also the
pytest plugin that puts the class in place.
"""

import os
import sys
from functools import partial

import pytest
import sb3_contrib

import sb3_ppo_variants
from upstream import class_variable, run_suite

# Tests of the other algorithms and of distributions do not concern us.
CHOSEN = (
    "test_invalid_actions.py or test_lstm.py or MaskablePPO or RecurrentPPO or test_advantage_normalization "
    "or test_ppo_mask_train_eval_mode"
)
# They turn masks off by learn(use_masking=False). Ours does so with a policy that takes none, such as MlpPolicy.
WITHOUT_MASKS = ["test_disabling_masking", "test_supports_multi_envs"]
# It predicts without masks, which raises an ArgumentError here. Masks of ones allow everything.
NO_MASKS_GIVEN = ["test_masked_evaluation"]
# It expects an error for a policy that takes no masks. Here it is the policy that says whether actions are masked.
ANY_POLICY = ["test_maskable_policy_required"]
# It expects other words of an error.
WORDS = ["test_discrete_action_space_required"]
NOT_APPLICABLE = [*WITHOUT_MASKS, *NO_MASKS_GIVEN, *ANY_POLICY, *WORDS]
# It asks for a score that training reaches with its seed, but not with all. Only the reference path makes the same run.
ONE_SEED = "test_ppo_lstm_performance"
# They ask for a clip_range, which the other classes have none of, and how much is learned with it.
CLIP_RANGE = ["test_identity", ONE_SEED]


def replace_algorithms(name: str) -> None:
    """Let ``from sb3_contrib import MaskablePPO, RecurrentPPO`` give classes of that name that are ours in all else."""
    cls = getattr(sb3_ppo_variants, name)
    names = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")
    aliases = {alias: cls.policy_aliases[f"Maskable{alias}"] for alias in names}
    vars(sb3_contrib)["MaskablePPO"] = type("MaskablePPO", (cls,), {"policy_aliases": aliases})
    vars(sb3_contrib)["RecurrentPPO"] = type("RecurrentPPO", (cls,), {})


@pytest.fixture(autouse=True)
def of_one_seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test whose outcome hangs on one seed train on the reference path, as sb3-contrib does bit for bit."""
    if request.node.name == ONE_SEED:
        monkeypatch.setattr(request.module, "RecurrentPPO", partial(vars(sb3_contrib)["RecurrentPPO"], fast=False))


def main(name: str, *pytest_arguments: str) -> int:
    """Run the tests with a class of this name."""
    excluded = [*NOT_APPLICABLE, *([] if name == "PPOClip" else CLIP_RANGE)]
    choice = " and ".join([f"({CHOSEN})", *(f"not {test}" for test in excluded)])
    return run_suite("sb3_contrib", "upstream_contrib", name, choice, pytest_arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
elif class_variable(__name__) in os.environ:
    replace_algorithms(os.environ[class_variable(__name__)])
