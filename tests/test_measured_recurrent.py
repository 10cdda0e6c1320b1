"""The page about policies with memory says how the recorded runs were made, and its commands make them again."""

import re
import shlex
from collections import defaultdict
from typing import Any

import pytest
from committed import ROOT, needs_records
from comparing import planned

from sb3_ppo_variants.compare import records
from sb3_ppo_variants.recipes import recipe

pytestmark = needs_records
PAGE = (ROOT / "docs" / "recurrent.md").read_text()


def recorded(file: str) -> list[Any]:
    found, problems = records.unpack(ROOT / "results" / f"{file}.jsonl.gz")
    assert not problems
    return found


def made(file: str) -> list[Any]:
    """List the runs of the page's commands that write to the folder of a file's runs."""
    (script,) = re.findall(rf"^```sh\n((?:(?!```).)*--out runs/{file}\b.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assigned = dict(re.findall(r'^(\w+)="(.*)"$', script, re.MULTILINE))
    whole = re.sub(r"\$(\w+)", lambda name: assigned[name[1]], script.replace("\\\n", " "))
    commands = re.findall(r"^python -m sb3_ppo_variants compare (.*)$", whole, re.MULTILINE)
    return [run.identity for command in commands for run in planned(shlex.split(command)).runs]


@pytest.mark.parametrize("file", ["memories", "recurrent"])
def test_the_commands_make_the_runs_that_were_recorded(file: str) -> None:
    runs, found = made(file), recorded(file)
    # Versions differ in the defaults that they list.
    names = set.intersection(*({name for run in each for name in run["hyperparameters"]} for each in (runs, found)))
    assert {"n_steps", "batch_size", "n_envs", "policy", "policy_kwargs"} <= names

    def describe(run: Any) -> str:
        values = {name: run["hyperparameters"].get(name) for name in sorted(names)}
        return repr((run["algorithm"], run["env"], run["seed"], run["timesteps"], values))

    assert sorted(map(describe, runs)) == sorted(map(describe, found))


def test_the_page_says_that_minibatches_differ() -> None:
    sizes: dict[str, set[tuple[str, int]]] = defaultdict(set)
    for run in recorded("recurrent"):
        if run["algorithm"]:
            sizes[run["env"].split(":")[1]].add((run["label"], run["hyperparameters"]["batch_size"]))
    objectives = ("ppo_clip", "ppo_adaptive_kl", "ppo_fixed_kl", "ppo_unclipped")
    assert {size for _, size in sizes["CartPoleNoVel-v1"]} == {256}
    assert sizes["PendulumNoVel-v1"] == {*((label, 64) for label in objectives), ("contrib_recurrent_ppo", 128)}
    now, page = recipe("ppo_clip", "PendulumNoVel-v1").arguments["batch_size"], " ".join(PAGE.split())
    assert "differ in the size of their minibatches: 64 in the four objectives, 128 in `RecurrentPPO`." in page
    assert now == 128 and f"It now has {now}, as in rl_zoo3" in page
    assert f"now gives all settings minibatches of {now}" in page
