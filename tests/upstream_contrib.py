"""Run sb3-contrib's own tests of ``MaskablePPO`` and ``RecurrentPPO`` with one of our classes in place of both.

    python tests/upstream_contrib.py PPOClip [pytest arguments]

The tests come from the source archive of the installed version, which is downloaded. This file is also the pytest
plugin that replaces the classes.
"""

import os
import sys
from functools import partial

import pytest
import sb3_contrib

import sb3_ppo_variants
from upstream import class_variable, run_suite

# Leaves out the tests of other algorithms and of distributions.
CHOSEN = (
    "test_invalid_actions.py or test_lstm.py or MaskablePPO or RecurrentPPO or test_advantage_normalization "
    "or test_ppo_mask_train_eval_mode"
)
# They turn masks off with learn(use_masking=False). In our classes, a policy without masks such as MlpPolicy does this.
WITHOUT_MASKS = ["test_disabling_masking", "test_supports_multi_envs"]
# It predicts without masks, which raises an ArgumentError here. Users can pass masks of ones to allow all actions.
NO_MASKS_GIVEN = ["test_masked_evaluation"]
# It expects an error for a policy without masks. Here the policy decides whether actions are masked.
ANY_POLICY = ["test_maskable_policy_required"]
# It expects a different error message.
WORDS = ["test_discrete_action_space_required"]
NOT_APPLICABLE = [*WITHOUT_MASKS, *NO_MASKS_GIVEN, *ANY_POLICY, *WORDS]
# It requires a score that training reaches with the test's seed, but not with every seed. Only the reference path
# reproduces that run.
ONE_SEED = "test_ppo_lstm_performance"
# They need PPO's clip_range, which the other classes do not have or do not use by default, and a score reached with it.
CLIP_RANGE = ["test_identity", ONE_SEED]


def replace_algorithms(name: str) -> None:
    """Make ``from sb3_contrib import MaskablePPO, RecurrentPPO`` import our class under these names."""
    cls = getattr(sb3_ppo_variants, name)
    names = ("MlpPolicy", "CnnPolicy", "MultiInputPolicy")
    aliases = {alias: cls.policy_aliases[f"Maskable{alias}"] for alias in names}
    vars(sb3_contrib)["MaskablePPO"] = type("MaskablePPO", (cls,), {"policy_aliases": aliases})
    vars(sb3_contrib)["RecurrentPPO"] = type("RecurrentPPO", (cls,), {})


@pytest.fixture(autouse=True)
def of_one_seed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train a test that depends on its seed on the reference path, which matches sb3-contrib bit for bit."""
    if request.node.name == ONE_SEED:
        monkeypatch.setattr(request.module, "RecurrentPPO", partial(vars(sb3_contrib)["RecurrentPPO"], fast=False))


def main(name: str, *pytest_arguments: str) -> int:
    """Run the tests with the class of the given name."""
    excluded = [*NOT_APPLICABLE, *([] if name == "PPOClip" else CLIP_RANGE)]
    choice = " and ".join([f"({CHOSEN})", *(f"not {test}" for test in excluded)])
    return run_suite("sb3_contrib", "upstream_contrib", name, choice, pytest_arguments)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
elif class_variable(__name__) in os.environ:
    replace_algorithms(os.environ[class_variable(__name__)])
