"""The data of the page "Explorer": every committed record of a run, as a thinned learning curve with its final score.

``conf.py`` writes them beside the page's scripts when the site is built.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import pandas as pd
from scipy.special import stdtrit

from sb3_ppo_variants.arguments import Values
from sb3_ppo_variants.compare.plan import own_protocol
from sb3_ppo_variants.compare.records import RANDOM, SPANS, Record, curve, digest, read
from sb3_ppo_variants.compare.scores import order
from sb3_ppo_variants.compare.statistics import LEVEL, are_enough

RESULTS = Path(__file__).parent.parent / "results"
# A curve has every second of the points of a record.
EVERY = 2
# The curves of the gallery are of means over single spans, which are averaged over this many.
SMOOTHED = 5
# Enough to draw curves. Final scores are not rounded.
DIGITS = 4
MOST_SEEDS = 100
# The title of each file of records, and the page about it. Another file has its name as title, and no page.
TITLES = {
    "table1-text": ("Table 1, 1 million steps, protocol of the text", "reports/table1-text/report"),
    "table1-code": ("Table 1, 1 million steps, protocol of the released code", "reports/table1-code/report"),
    "table1-more-seeds": ("Table 1, 1 million steps, two more seeds", "results/index"),
    "table1-study": ("What Table 1 depends on", "table1-study"),
    "paper-figure3": ("Figure 3, 1 million steps", "reports/paper-figure3/report"),
    "sb3-1m": ("PPOClip beside SB3's PPO, 1 million steps", "reports/sb3-1m/report"),
    "same-learning": ("PPOClip beside SB3's PPO, with the recipes", "reports/same-learning/report"),
    "separate-200k": ("Joint and separate updates", "reports/separate-200k/report"),
    "spinning-up": ("Spinning Up's setting", "reports/spinning-up/report"),
    "hopper": ("Hopper with the recipe", "reports/hopper/report"),
    "hopper-causes": ("Hopper with another discount or exploration", "results/index"),
    "masked": ("Masks", "reports/masked/report"),
    "recurrent": ("Memory", "reports/recurrent/report"),
    "memories": ("LSTM, GRU and no memory, CartPole without velocities", "recurrent"),
    "masks-and-memory": ("Masks and a memory", "howto/masks_and_memory"),
    "move-or-kick": ("Hybrid actions and bins, MoveOrKick", "howto/hybrid_actions"),
    "details": ("Implementation details", "reports/details/report"),
    "distributions": ("Distributions, Pendulum", "howto/bounded_actions"),
    "distributions-halfcheetah": ("Distributions, HalfCheetah", "howto/bounded_actions"),
    "objectives-500k": ("All objectives, 500,000 steps", "reports/objectives-500k/report"),
    "robustness": ("Random hyperparameters", "robustness"),
    "penalties-ant": ("Penalties in Ant, 1 million steps", "reports/penalties-ant/report"),
    "penalties-humanoid": ("Penalties in Humanoid, 1 million steps", "reports/penalties-humanoid/report"),
    "gallery": ("Gallery of the recipes", "reports/gallery/README"),
}
ALGORITHMS = {"stable_baselines3": "SB3's", "sb3_contrib": "sb3-contrib's"}


class Run(NamedTuple):
    """A run as the page shows it, with ``experiments`` the places of the files that it is in."""

    seed: int
    score: float | None
    experiments: list[int]
    curve: list[float | None]


class Group(TypedDict):
    """Runs that differ in their seeds alone. Those with the same ``panel`` are drawn in the same picture."""

    setting: str
    algorithm: str
    env: str
    protocol: str
    panel: str
    steps: int
    # Its place among the hyperparameters of all groups.
    given: int
    runs: list[Run]


class Experiment(TypedDict):
    """A file of records."""

    name: str
    title: str
    page: str | None
    # Whether curves average the episodes that ended within a few spans of steps, instead of the last 100 episodes.
    spanned: bool


class Explorer(TypedDict):
    """All data of the page."""

    # The name of the random policy, which is drawn as a line.
    random: str
    experiments: list[Experiment]
    # By the number of seeds, what their standard deviation is multiplied with for half the width of an interval.
    factors: dict[int, float]
    # Each a list of ``name=value``.
    hyperparameters: list[list[str]]
    groups: list[Group]


def collect(folder: Path = RESULTS) -> Explorer:
    """Read all records of runs in a folder.

    :raises ArgumentError: if a file cannot be read
    """
    experiments: list[Experiment] = []
    groups: dict[str, Group] = {}
    given: list[list[str]] = []
    for file in sorted([*folder.glob("*.jsonl.gz"), *folder.glob("*.jsonl")], key=_place):
        name = file.name.partition(".")[0]
        found = list(read(file) if file.suffix == ".gz" else _evaluated(file))
        title, page = TITLES.get(name, (name, None))
        experiments.append({"name": name, "title": title, "page": page, "spanned": file.suffix != ".gz"})
        for record in found:
            _add(record, len(experiments) - 1, groups, given)
    places = {setting: order(setting) for setting in {group["setting"] for group in groups.values()}}
    ordered = sorted(groups.values(), key=lambda group: (places[group["setting"]], group["env"], group["protocol"]))
    for group in ordered:
        group["runs"].sort(key=lambda run: run.seed)
    return {
        "random": RANDOM,
        "experiments": experiments,
        "factors": _factors(),
        "hyperparameters": given,
        "groups": ordered,
    }


def write(file: Path, folder: Path = RESULTS) -> None:
    """Write the data as a script, which a page opened without a server can read too."""
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(collect(folder), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    file.write_text(f"const RECORDS = {text};\n", encoding="utf-8")


def _place(file: Path) -> tuple[int, str]:
    name = file.name.partition(".")[0]
    return list(TITLES).index(name) if name in TITLES else len(TITLES), name


def _factors() -> dict[int, float]:
    """Return the factors of Student's t intervals, as in the reports, for each number of seeds that gives one."""
    seeds = [number for number in range(2, MOST_SEEDS) if are_enough(number, 1)]
    return {number: float(stdtrit(number - 1, 0.5 + LEVEL / 2) / math.sqrt(number)) for number in seeds}


def _evaluated(file: Path) -> Iterator[Record]:
    """Read the records of the gallery, whose scores are those of the saved models.

    A span without the end of an episode has the value before.
    """
    for line in file.read_text().splitlines():
        made: dict[str, Any] = json.loads(line)
        values = pd.Series(made["curve"], dtype=float).ffill().rolling(SMOOTHED, min_periods=1).mean()
        yield Record(
            format=1, status="finished", label="ppo_clip", algorithm="sb3_ppo_variants:PPOClip", versions={},
            name=f"gallery-{made['env']}-{made['seed']}-{made['timesteps']}", env=made["env"], seed=made["seed"],
            timesteps=made["timesteps"], steps=made["timesteps"], score=made["mean"], trailing=values.tolist(),
            hyperparameters={}, conditions={"protocol": "recipe, saved model evaluated"}, episodes=None, machine="",
            wall_seconds=None, cpu_seconds=made["cpu_seconds"],
        )  # fmt: skip


def _add(record: Record, experiment: int, groups: dict[str, Group], given: list[list[str]]) -> None:
    """Add a run to its group, or the experiment to a run that is there already."""
    identity = [record["label"], record["env"], record["timesteps"], record["conditions"], record["hyperparameters"]]
    group = groups.setdefault(digest(identity), _group(record, _place_in(given, record)))
    points = _thin(record) if record["status"] == "finished" else []
    run = Run(record["seed"], record.get("score"), [experiment], points)
    # Made again on another processor, a seed gives another run.
    same = next((other for other in group["runs"] if other._replace(experiments=[experiment]) == run), None)
    if same is None:
        group["runs"].append(run)
    else:
        same.experiments.append(experiment)


def _place_in(given: list[list[str]], record: Record) -> int:
    """Return the place of a run's hyperparameters in the list, where they are added if they are not there."""
    own = _assignments(record["hyperparameters"])
    if own not in given:
        given.append(own)
    return given.index(own)


def _group(record: Record, given: int) -> Group:
    """Return the group of a run, without runs."""
    conditions = digest(record["conditions"])[:6]
    return {
        "setting": record["label"],
        "algorithm": _algorithm(record),
        "env": record["env"].split(":")[-1],
        "protocol": _protocol(record),
        "panel": f"{record['env']} {conditions}",
        "steps": record.get("steps", record["timesteps"]),
        "given": given,
        "runs": [],
    }


def _algorithm(record: Record) -> str:
    """Return the algorithm in words: its class, with the package if it is another one, or the objective."""
    module, _, name = record["algorithm"].partition(":")
    if not name:
        return record["label"]
    objective = record["label"].partition("objective=")[2]
    whose = ALGORITHMS.get(module.partition(".")[0])
    return f"{whose} {name}" if whose else f"{name}: {objective}" if objective else name


def _protocol(record: Record) -> str:
    """Return the protocol, and what was changed in it, in words."""
    if own := own_protocol(record["label"]):
        return own
    conditions = record["conditions"]
    entry = conditions.get("entry")
    named = conditions.get("protocol") or (f"hyperparameters of {entry}" if entry else "recipe")
    if changed := conditions.get("switched"):
        return f"{named}, {changed}"
    switches = {"normalize": "normalised", "anneal": "annealed"}
    switched = [word for name, word in switches.items() if conditions.get(name)]
    return ", ".join([named, *switched, *_assignments(conditions.get("parameters") or {})])


def _assignments(values: Values) -> list[str]:
    """Return values as text."""
    return [f"{name}={json.dumps(value).strip(chr(34))}" for name, value in sorted(values.items())]


def _thin(record: Record) -> list[float | None]:
    """Return every second point of a learning curve, rounded."""
    return [_rounded(value) for value in curve(record)[EVERY - 1 : SPANS : EVERY]]


def _rounded(value: float | None) -> float | None:
    if value is None or math.isnan(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    # Without a decimal point, which takes two letters of a file.
    return int(rounded) if rounded.is_integer() else rounded
