"""Which runs a comparison has, and how they were made."""

from collections.abc import Collection

from sb3_ppo_variants.benchmark.compare.presets import PRESETS
from sb3_ppo_variants.benchmark.compare.scores import Comparison
from sb3_ppo_variants.benchmark.compare.settings import parse


def summary(comparison: Comparison) -> str:
    """Which runs there are, under which conditions, with which versions and on which machines.

    :return: a list in Markdown
    """
    everything = [*comparison.records, *comparison.random, *comparison.failed]
    trainings = [*comparison.records, *comparison.failed]
    counts = [
        count({record["label"] for record in trainings}, "setting"),
        count({record["env"] for record in trainings}, "environment"),
        count({record["seed"] for record in trainings}, "seed"),
    ]
    steps = sorted({record["timesteps"] for record in trainings})
    versions = sorted({", ".join(f"{n} {v}" for n, v in record["versions"].items()) for record in everything})
    lines = [
        *_conditions(comparison),
        f"runs: {len(comparison.records)} finished, {len(comparison.failed)} failed ({', '.join(counts)})",
        f"steps of a run: {', '.join(f'{number:,}' for number in steps)}",
        *(["runs of different versions are compared here"] if len(versions) > 1 else []),
        *(f"versions: {line}" for line in versions),
        *(f"machine: {line}" for line in sorted({record["machine"] for record in everything})),
    ]
    return "\n".join(f"- {line}" for line in lines)


def _conditions(comparison: Comparison) -> list[str]:
    """Which conditions a comparison has, and how much it is of its preset."""
    conditions = comparison.conditions
    given = {
        "hyperparameters of": conditions["entry"] or conditions["file"],
        "changed": conditions["parameters"],
        "normalised by VecNormalize": conditions["normalize"],
        "step size annealed to 0": conditions["anneal"],
    }
    lines = [f"{name}: {_in_words(value)}" for name, value in given.items() if value not in (None, {})]
    preset = PRESETS.get(conditions["preset"] or "")
    if preset is None:
        return lines
    labels = {parse(text).label for text in preset.settings["all"]}
    seeds = {record["seed"] for record in comparison.records}
    # Not all settings need have all seeds.
    made = sum(
        record["label"] in labels and record["env"] in preset.envs and record["seed"] < preset.seeds
        for record in comparison.records
    )
    steps = {record["timesteps"] for record in comparison.records}
    shares = [
        f"{len(labels & set(comparison.labels))} of {len(labels)} settings",
        f"{len(set(preset.envs) & set(comparison.envs))} of {len(preset.envs)} environments",
        f"{len(seeds)} {'instead of' if len(seeds) > preset.seeds else 'of'} {preset.seeds} seeds",
        f"{made} of {len(labels) * len(preset.envs) * preset.seeds} runs",
        f"{' or '.join(f'{number:,}' for number in sorted(steps))} of {preset.conditions.timesteps:,} steps",
    ]
    return [f"of the preset this is: {', '.join(shares)}", *lines, *([preset.why] if preset.why else [])]


def count(things: Collection[object], name: str) -> str:
    """How many things of a name, in words."""
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"


def _in_words(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
