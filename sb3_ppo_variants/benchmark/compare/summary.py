"""Which runs a comparison has, and how they were made."""

from typing import Any

from sb3_ppo_variants.benchmark.compare.presets import PRESETS
from sb3_ppo_variants.benchmark.compare.scores import Comparison
from sb3_ppo_variants.benchmark.compare.settings import parse


def summary(comparison: Comparison) -> list[str]:
    """Which runs there are, under which conditions, with which versions and on which machines.

    :return: lines of Markdown
    """
    everything = [*comparison.records, *comparison.random, *comparison.failed]
    seeds = {record["seed"] for record in [*comparison.records, *comparison.failed]}
    steps = sorted({record["timesteps"] for record in comparison.records})
    labels, envs = ({record[name] for record in comparison.records} for name in ("label", "env"))
    versions = sorted({", ".join(f"{n} {v}" for n, v in record["versions"].items()) for record in everything})
    machines = sorted({record["machine"] for record in everything})
    return [
        *_conditions(comparison),
        f"- {len(comparison.records)} of {len(labels) * len(envs) * len(seeds)} runs are finished "
        f"({len(labels)} settings, {len(envs)} environments, {len(seeds)} seeds), {len(comparison.failed)} failed",
        f"- steps of a run: {', '.join(f'{number:,}' for number in steps)}",
        *(f"- versions: {line}" for line in versions),
        *(f"- machine: {line}" for line in machines),
    ]


def _conditions(comparison: Comparison) -> list[str]:
    """Which conditions a comparison has, and how much it is of its preset."""
    conditions = comparison.conditions
    given = {
        "hyperparameters of": conditions["entry"] or conditions["file"],
        "changed": conditions["parameters"],
        "normalised by VecNormalize": conditions["normalize"],
        "step size annealed to 0": conditions["anneal"],
    }
    lines = [f"- {name}: {_in_words(value)}" for name, value in given.items() if value not in (None, {})]
    preset = PRESETS.get(conditions["preset"])
    if preset is None:
        return lines
    labels = {parse(text).label for text in preset.settings["all"]}
    seeds = {record["seed"] for record in comparison.records}
    steps = {record["timesteps"] for record in comparison.records}
    shares = [
        f"{len(labels & set(comparison.labels))} of {len(labels)} settings",
        f"{len(set(preset.envs) & set(comparison.envs))} of {len(preset.envs)} environments",
        f"{len(seeds)} of {preset.seeds} seeds",
        f"{' or '.join(f'{number:,}' for number in sorted(steps))} of {preset.timesteps:,} steps",
    ]
    return [f"- of the preset this is: {', '.join(shares)}", *lines, *([f"- {preset.why}"] if preset.why else [])]


def _in_words(value: Any) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
