"""The tables and lists of a report, in Markdown."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import pandas as pd

from sb3_ppo_variants.compare import provenance
from sb3_ppo_variants.compare.markdown import escaped, fenced
from sb3_ppo_variants.compare.plan import RANDOM
from sb3_ppo_variants.compare.presets import PRESETS, Preset
from sb3_ppo_variants.compare.ranking import Ranked
from sb3_ppo_variants.compare.records import Record
from sb3_ppo_variants.compare.scores import Comparison, order, random_scores
from sb3_ppo_variants.compare.settings import own_protocol
from sb3_ppo_variants.recipes import PROTOCOLS


def markdown(frame: pd.DataFrame) -> str:
    """Format a table with a row for each setting as Markdown."""
    return frame.rename(index=escaped).rename_axis("setting").to_markdown(disable_numparse=True)


def final_scores(comparison: Comparison, frame: pd.DataFrame) -> str:
    """Return a table of the mean score of each setting in each environment, with the standard deviation over seeds."""
    cells = frame.groupby(["label", "env"])["score"].apply(_mean).unstack()
    cells.loc[RANDOM] = pd.Series(random_scores(comparison), dtype=float).map(_number)
    return markdown(cells.loc[[RANDOM, *comparison.labels], comparison.envs].fillna(""))


def across(comparisons: Sequence[Comparison], level: int = 3) -> list[str]:
    """Return a table for each environment, with the mean score of each setting under each of several conditions.

    :param level: level of the headings
    """
    rows = [
        (comparison.circumstances, record["env"], record["label"], record["score"])
        for comparison in comparisons
        for record in comparison.records
    ]
    frame = pd.DataFrame(rows, columns=["conditions", "env", "label", "score"])
    blocks = []
    for env, found in frame.groupby("env"):
        cells = found.groupby(["conditions", "label"], sort=False)["score"].apply(_mean).unstack().fillna("")
        known = [comparison.circumstances for comparison in comparisons if comparison.circumstances in cells.index]
        table = cells.loc[known, sorted(cells.columns, key=order)]
        text = table.rename(columns=escaped).rename_axis("conditions").to_markdown(disable_numparse=True)
        blocks += [f"{level * '#'} {env}", text]
    return blocks


def overview(comparison: Comparison, frame: pd.DataFrame, order: Sequence[Ranked], iqm: Mapping[str, float]) -> str:
    """Return a table of what is most asked about each setting: its rank and score, its speed, and the KL of an update.

    :param frame: the scores, as ``scores.table`` returns them
    :param order: the settings that have normalised scores, the best first
    :param iqm: the interquartile means of these settings; empty leaves them out
    """
    rows = {
        each.label: {
            "seeds": each.seeds, "rank": each.ranks, "mean score": each.value, "better than": len(each.better),
            "worse than": len(each.worse),
        }
        for each in order
    }  # fmt: skip
    labels = [*rows, *(label for label in comparison.labels if label not in rows)]
    cells = pd.DataFrame.from_dict(rows, orient="index", dtype=object).reindex(labels)
    if iqm:
        cells.insert(3, "IQM", pd.Series(iqm).map("{:.2f}".format))
    if len(comparison.envs) == 1:
        cells["return"] = frame.groupby("label")["score"].apply(_mean)
    cells["steps per second"] = _paces(frame, comparison.baseline)
    cells["KL of an update"] = pd.Series({label: _kept(comparison, label) for label in labels})
    # Nothing is known of some columns in records of other libraries and of earlier versions.
    return markdown(cells.dropna(axis="columns", how="all").astype(object).where(cells.notna(), ""))


def _paces(frame: pd.DataFrame, baseline: str) -> pd.Series:
    """Return the steps per second of each setting, and how many times the baseline's they are."""
    paces = frame.groupby("label")["steps_per_second"].mean().dropna()
    of_baseline = paces.get(baseline)
    return paces.map(lambda pace: f"{pace:,.0f}{'' if of_baseline is None else f' ({pace / of_baseline:.1f} x)'}")


def _kept(comparison: Comparison, label: str) -> str | None:
    """Return the median of the KL that a setting's updates logged, and the range of its middle 80%.

    SB3 logs an estimate of it, and records of earlier versions have neither.
    """
    logged = [record.get("training", {}) for record in comparison.records if record["label"] == label]
    for name, form in (("kl", "{}"), ("approx_kl", "about {}")):
        spans = [value for of_run in logged for value in of_run.get(name, []) if value is not None]
        if spans:
            low, middle, high = (f"{float(f'{value:.2g}'):g}" for value in np.percentile(spans, [10, 50, 90]))
            return form.format(f"{middle} ({low} to {high})")
    return None


def p_value(p: float) -> str:
    """Format a p value, which is NaN if there is none."""
    return "" if np.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.2g}"


def against(found: Mapping[str, Mapping[str, object]]) -> str:
    """Return a table of how each setting compares with another one."""
    return markdown(pd.DataFrame.from_dict(found, orient="index"))


def shares_of_humans(games: pd.DataFrame) -> str:
    """Return a table of the mean human-normalised score of each setting in each game."""
    cells = games.groupby(["label", "env"], sort=False)["normalised"].mean().unstack()
    return markdown(_formatted(cells, "{:.3f}"))


def speed(frame: pd.DataFrame) -> str:
    """Return a table of the steps per second and the times of each setting, as means over its runs."""
    # Runs that were recorded elsewhere may have no times.
    settings = frame.dropna(subset="wall_seconds").groupby("label", sort=False)
    means = _formatted(settings[["steps_per_second", "wall_seconds", "cpu_seconds"]].mean(), "{:.0f}")
    means.columns = pd.Index(["steps per second", "seconds of a run", "seconds of CPU of a run"])
    means.insert(0, "runs", settings.size())
    return markdown(means)


def failures(failed: Sequence[Record]) -> list[str]:
    """Return the failed runs with their tracebacks."""
    return [
        f"{escaped(record['label'])}, {record['env']}, seed {record['seed']}:\n\n{fenced(record['error'].strip())}"
        for record in failed
    ]


def _mean(of_seeds: pd.Series) -> str:
    known = of_seeds.dropna()
    if known.empty:
        return "no episode ended"
    spread = f" ± {_number(known.std())}" if len(known) > 1 else ""
    return f"{_number(known.mean())}{spread} ({len(known)})"


def _formatted(cells: pd.DataFrame, form: str) -> pd.DataFrame:
    """Format numbers, and leave the cells of unknown ones blank."""
    return cells.map(lambda value: "" if pd.isna(value) else form.format(value))


def _number(value: float) -> str:
    """Format a number with four digits, which is more than seeds agree on."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def summary(comparison: Comparison) -> str:
    """List the conditions of a comparison, its numbers of runs, and the versions and machines that made them."""
    failed = [record for record in comparison.failed if record["label"] != RANDOM]
    trainings = [*comparison.records, *failed]
    everything = [*comparison.records, *comparison.failed, *comparison.random]
    counts = [
        count({record["label"] for record in trainings}, "setting"),
        count({record["env"] for record in trainings}, "environment"),
        count({record["seed"] for record in trainings}, "seed"),
    ]
    steps = sorted({record["timesteps"] for record in trainings})
    versions = sorted({", ".join(f"{n} {v}" for n, v in record["versions"].items()) for record in everything})
    lines = [
        *_conditions(comparison),
        f"runs: {len(comparison.records)} finished, {len(failed)} failed ({', '.join(counts)})",
        *([f"steps of a run: {', '.join(f'{number:,}' for number in steps)}"] if steps else []),
        *(["runs of different versions are compared here"] if len(versions) > 1 else []),
        *(f"versions: {line}" for line in versions),
        *(f"commit: {commit}" for commit in sorted({record.get("commit") or "" for record in everything}) if commit),
        *(f"machine: {line}" for line in sorted({record["machine"] for record in everything})),
        *provenance.described(trainings),
    ]
    return "\n".join(f"- {line}" for line in lines)


def added(comparison: Comparison) -> list[str]:
    """Say which settings were recorded elsewhere, and how many runs each of them has."""
    others = [label for label in comparison.labels if label not in comparison.own.labels]
    if not others:
        return []
    runs = Counter(record["label"] for record in comparison.records)
    said = ", ".join(f"{escaped(label)} ({count(range(runs[label]), 'run')})" for label in others)
    return [f"Added from elsewhere: {said}. Hyperparameters, versions and machine are not known."]


def _conditions(comparison: Comparison) -> list[str]:
    conditions = comparison.applied
    protocol = conditions.get("protocol")
    sources = [source for source in (conditions["entry"], conditions["file"]) if source is not None]
    # The description names values of this entry too, and another source may have different ones.
    says = f", {PROTOCOLS[protocol].says}" if protocol and sources == ["mujoco"] else ""
    others = any(own_protocol(label) not in (None, protocol) for label in comparison.labels)
    given = {
        "protocol": protocol and f"{protocol}{says}{'; settings with a protocol of their own follow that' * others}",
        "but": conditions.get("switched"),
        "hyperparameters of": " in ".join(sources) or None,
        "changed": conditions["parameters"] or None,
        "normalised by VecNormalize": _yes_or_no(conditions["normalize"]),
        "step size annealed to 0": _yes_or_no(conditions["anneal"]),
    }
    lines = [f"{name}: {value}" for name, value in given.items() if value is not None]
    preset = PRESETS.get(conditions["preset"] or "")
    if preset is None:
        return lines
    # The reason is about the preset's own conditions, not about a protocol.
    why = [preset.why] if preset.why and protocol is None else []
    return [_shares(comparison, preset), *lines, *why]


def _yes_or_no(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _shares(comparison: Comparison, preset: Preset) -> str:
    """Say how much of its preset a comparison covers."""
    protocol = comparison.conditions.get("protocol")
    labels = preset.labels(protocol)
    seeds = {record["seed"] for record in comparison.records}
    # Count each run, because not every setting needs to have every seed.
    made = len(preset.planned(comparison.records, protocol))
    steps = sorted({record["timesteps"] for record in comparison.records})
    shares = [
        f"{len(labels & set(comparison.labels))} of {len(labels)} settings",
        f"{len(set(preset.envs) & set(comparison.envs))} of {len(preset.envs)} environments",
        f"{len(seeds)} {'instead of' if len(seeds) > preset.seeds else 'of'} {preset.seeds} seeds",
        f"{made} of {len(labels) * len(preset.envs) * preset.seeds} runs",
        *(
            [f"{' or '.join(f'{number:,}' for number in steps)} of {preset.conditions.timesteps:,} steps"]
            if steps
            else []
        ),
    ]
    return f"coverage of the preset: {', '.join(shares)}"


def count(things: Collection[object], name: str) -> str:
    """Return the number of things with their name, such as "1 seed" or "3 seeds"."""
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
