"""Without its extra, each optional feature fails with an error that names the extra."""

import json
import subprocess
import sys

import pytest

from helpers import OPTIONAL

PACKAGES = [*OPTIONAL, "sbx"]
# For each extra, code that needs it, the type of the error without it, and the beginning of the message.
FEATURES = {
    "environments": ("envs.make_ale_vec_env('BreakoutNoFrameskip-v4')", "ImportError", "Atari games need ALE"),
    "zoo": (
        "runpy.run_module('sb3_ppo_variants.zoo.train', run_name='__main__')",
        "ImportError",
        "rl_zoo3 is not installed",
    ),
}
# Runs in a separate process, where importing any of the packages fails as if it were not installed.
SCRIPT = """
import json, runpy, sys
packages, features = json.loads(sys.argv[1])
sys.modules |= dict.fromkeys(packages)
from sb3_ppo_variants import PPOClip, envs

def problem(code):
    try:
        exec(code)
    except Exception as error:
        return type(error).__name__, str(error)

PPOClip("MlpPolicy", "CartPole-v1", n_steps=16, batch_size=16).learn(16)
print(json.dumps({extra: problem(code) for extra, code in features.items()}))
"""


@pytest.fixture(scope="module")
def problems() -> dict[str, tuple[str, str]]:
    arguments = json.dumps([PACKAGES, {extra: code for extra, (code, *_) in FEATURES.items()}])
    ended = subprocess.run([sys.executable, "-c", SCRIPT, arguments], capture_output=True, text=True, check=True)
    return json.loads(ended.stdout)


@pytest.mark.parametrize("extra", FEATURES)
def test_its_sentence(extra: str, problems: dict[str, tuple[str, str]]) -> None:
    _, error, beginning = FEATURES[extra]
    raised, message = problems[extra]
    assert raised == error
    assert message.startswith(beginning)
    assert message.endswith(f"pip install -e '.[{extra}]'  # in a clone of sb3_ppo_variants")
