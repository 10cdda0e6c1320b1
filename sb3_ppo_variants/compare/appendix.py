"""A report as the appendix of a paper: LaTeX tables, figures at the width of a page, methods, and findings as JSON.

``appendix.tex`` compiles as it is, with ``pdflatex appendix; bibtex appendix; pdflatex appendix; pdflatex appendix``.
Its parts can be copied one by one; they need the packages adjustbox, array, booktabs, graphicx, natbib and url.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from sb3_ppo_variants.compare import plots, statistics, tables
from sb3_ppo_variants.compare.records import LAST
from sb3_ppo_variants.compare.scores import Comparison
from sb3_ppo_variants.compare.statistics import ALPHA, MARGIN, POWER, Estimate
from sb3_ppo_variants.saving.plain import Values

# The width of the text on a page of most conferences and journals, in inches, and the number of pictures beside each
# other.
WIDTH, COLUMNS = 5.5, 3
# The numbers of seeds for which the smallest difference that they can tell is given.
NUMBERS_OF_SEEDS = (3, 5, 10, 20, 30)
DOCUMENT = r"""\documentclass[10pt]{article}
\usepackage[utf8]{inputenc}
\usepackage[T1]{fontenc}
\usepackage[textwidth=5.5in,textheight=9in]{geometry}
\usepackage{adjustbox,array,booktabs,graphicx,lmodern,natbib,url}
\setlength{\belowcaptionskip}{6pt}
\begin{document}
\appendix
CHAPTERS
\bibliographystyle{plainnat}
\bibliography{references}
\end{document}
"""
REFERENCES = r"""
@article{schulman2017proximal, title={Proximal Policy Optimization Algorithms}, author={Schulman, John and Wolski, Filip
  and Dhariwal, Prafulla and Radford, Alec and Klimov, Oleg}, journal={arXiv preprint arXiv:1707.06347},
  year={2017}}
@article{raffin2021stable, title={{Stable-Baselines3}: Reliable Reinforcement Learning Implementations}, author={Raffin,
  Antonin and Hill, Ashley and Gleave, Adam and Kanervisto, Anssi and Ernestus, Maximilian and Dormann, Noah},
  journal={Journal of Machine Learning Research}, volume={22}, number={268}, pages={1--8}, year={2021}}
@article{towers2024gymnasium, title={Gymnasium: A Standard Interface for Reinforcement Learning Environments},
  author={Towers, Mark and others}, journal={arXiv preprint arXiv:2407.17032}, year={2024}}
@inproceedings{agarwal2021deep, title={Deep Reinforcement Learning at the Edge of the Statistical Precipice},
  author={Agarwal, Rishabh and Schwarzer, Max and Castro, Pablo Samuel and Courville, Aaron and Bellemare, Marc G.},
  booktitle={Advances in Neural Information Processing Systems}, volume={34}, year={2021}}
@article{holm1979simple, title={A Simple Sequentially Rejective Multiple Test Procedure}, author={Holm, Sture},
  journal={Scandinavian Journal of Statistics}, volume={6}, number={2}, pages={65--70}, year={1979}}
@article{schuirmann1987comparison, title={A Comparison of the Two One-Sided Tests Procedure and the Power Approach for
  Assessing the Equivalence of Average Bioavailability}, author={Schuirmann, Donald J.}, journal={Journal of
  Pharmacokinetics and Biopharmaceutics}, volume={15}, pages={657--680}, year={1987}}
@article{newcombe2006confidence, title={Confidence Intervals for an Effect Size Measure Based on the {Mann--Whitney}
  Statistic. {Part} 2: Asymptotic Methods and Evaluation}, author={Newcombe, Robert G.}, journal={Statistics in
  Medicine}, volume={25}, number={4}, pages={559--573}, year={2006}}
@misc{sb3ppovariants, title={{sb3\_ppo\_variants}: the policy objectives of the {PPO} paper for
  {Stable-Baselines3}}, author={{The sb3\_ppo\_variants maintainers}},
  howpublished={\url{https://github.com/sb3-ppo-variants/sb3_ppo_variants}}}
"""
TRAINED = f"""\
We trained {{settings}} in {{envs}} with {{seeds}} seeds each, for {{steps}} environment steps, with
sb3\\_ppo\\_variants~\\citep{{{{sb3ppovariants}}}}, which implements the objectives of
\\citet{{{{schulman2017proximal}}}} on Stable-Baselines3~\\citep{{{{raffin2021stable}}}} and
Gymnasium~\\citep{{{{towers2024gymnasium}}}}{{versions}}. The score of a run is the mean return of its last {LAST}
training episodes."""
TESTED = f"""\
In each environment, scores are shifted and scaled so that the random policy has 0 and the best run 1
\\citep[compare][]{{{{agarwal2021deep}}}}. Intervals of means are $t$ intervals over seeds with Welch's and
Satterthwaite's degrees of freedom, widened for skewed scores; those of the probability of improvement are Newcombe's
\\citep{{{{newcombe2006confidence}}}}. Two settings differ beyond noise if a permutation test of the difference of their
means over seeds, stratified by environment, gives $p \\leq {ALPHA}$ after Holm's correction
\\citep{{{{holm1979simple}}}} for {{pairs}} of settings with several seeds. They are equivalent if two one-sided
$t$ tests at 5\\% \\citep{{{{schuirmann1987comparison}}}} show that their means differ by less than {MARGIN}. Where
neither holds, these runs cannot tell."""
DOUBTFUL_RUNS = """\
Runs without a score do not count, and their settings are not called better; runs that were recorded elsewhere are shown
but not tested"""
MEANS = r"""Mean normalised score with its 95\% interval, the range of ranks that the tests allow, and the settings
than which one is better beyond noise."""
AGAINST = r"""Against {}: the probability that a run is better, and the difference of the means (above 0: better), with
95\% intervals; the $p$ value of the difference, corrected for all pairs; and whether both are equivalent."""
FINAL = (
    f"Mean return of the last {LAST} training episodes: mean over seeds $\\pm$ standard deviation (number of seeds)."
)
DETECTED = f"""\
The smallest difference of two mean normalised scores that so many seeds of each setting find with a probability of
{POWER * 100:.0f}\\%, from the variances over seeds of these runs, at the strictest level of Holm's method."""
CURVES = f"""\
Learning curves: the mean return of the {LAST} episodes that ended last. Lines are means over seeds, bands 95\\%
intervals. Where seeds are too few for intervals, thin lines are seeds."""
PROFILES = "Performance profiles: the share of runs with a higher normalised score, with 95\\% intervals."
FIGURE_TEMPLATE = r"""\begin{{figure}}[htbp]
\centering
\includegraphics[width=\textwidth]{{{}}}
\caption{{{}}}
\end{{figure}}"""
# Columns with longer texts than this break their lines.
LONGEST_IN_LINE = 60
LATEX_LETTERS = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"}, "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "±": r"$\pm$", "β": r"$\beta$", "ε": r"$\varepsilon$",
}  # fmt: skip


def make_appendix(out: Path, compared: Sequence[Comparison], baseline: str | None) -> dict[Path, str]:
    """Write ``appendix.tex``, its references and ``findings.json``, and draw the figures.

    :param out: folder of these files
    :param baseline: label of the setting that the others are compared with; ``None`` takes SB3's PPO
    """
    out.mkdir(parents=True, exist_ok=True)
    known = [comparison for comparison in compared if not comparison.table.empty]
    text = "\n".join(chapter(comparison, baseline or comparison.baseline, out) for comparison in known)
    found = json.dumps([collect_findings(comparison) for comparison in known], indent=1, ensure_ascii=False)
    tex = DOCUMENT.replace("CHAPTERS", text)
    return {out / "appendix.tex": tex, out / "references.bib": REFERENCES, out / "findings.json": f"{found}\n"}


def chapter(comparison: Comparison, baseline: str, out: Path) -> str:
    """Write the part on a comparison as LaTeX, and draw its figures into a folder."""
    title = escape_latex(f"{comparison.title} ({comparison.name})")
    blocks = [f"\\section{{{title}}}", "\\subsection{Methods}", _methods(comparison), "\\subsection{Results}"]
    if comparison.arrays:
        blocks += _means(comparison, baseline)
    cells = tables.score_cells(comparison).rename_axis("setting").reset_index()
    blocks += [tabular(cells, FINAL), *_figures(comparison, out)]
    if comparison.own.records:
        shared, different = tables.divide_hyperparameters(comparison.own)
        blocks += ["\\subsection{Hyperparameters}", tabular(shared, "Values that all settings share.")]
        blocks += [tabular(different, "Values in which settings differ.")] if len(different) else []
    return "\n\n".join(blocks) + "\n"


def _methods(comparison: Comparison) -> str:
    """Write a paragraph about the runs and the statistics, with citations."""
    own, (labels, envs) = comparison.own, comparison.tried
    said = []
    if own.records:
        seeds = own.table.groupby(["label", "env"])["score"].count()
        versions = {f"{name} {of}" for record in own.records for name, of in record["versions"].items()}
        trained = TRAINED.format(
            settings=tables.say_count({*labels} - {*comparison.added}, "setting"),
            envs=tables.say_count(envs, "environment"),
            seeds=" to ".join(map(str, sorted({seeds.min(), seeds.max()}))),
            steps=" or ".join(f"{number:,}" for number in sorted(own.table["timesteps"].unique())),
            versions=f" ({escape_latex(', '.join(sorted(versions)))})" if versions else "",
        )
        said.append(trained)
    if doubts := "; ".join(f"{label}: {doubt}" for label, doubt in comparison.doubts.items()):
        said.append(f"{DOUBTFUL_RUNS} ({escape_latex(doubts)}).")
    if pairs := math.comb(sum(len(own) > 1 for own in comparison.tested.values()), 2):
        said.append(TESTED.format(pairs=f"all {pairs} pairs" if pairs > 1 else "the single pair"))
    if comparison.without_scale:
        said.append(f"Means leave out {escape_latex(', '.join(comparison.without_scale))}, {tables.WITHOUT_SCALE}.")
    if comparison.incomplete:
        said.append(f"Without a seed in every environment: {escape_latex(', '.join(comparison.incomplete))}.")
    said += map(escape_latex, tables.warn_of_scale(comparison))
    return "\n".join(said)


def _means(comparison: Comparison, baseline: str) -> list[str]:
    """Make the tables about means over environments."""
    rows = [(each.label, each.seeds, each.value, each.ranks, ", ".join(each.better)) for each in comparison.ranking]
    means = pd.DataFrame(rows, columns=["setting", "seeds", "mean", "rank", "better than"])
    blocks = [tabular(means, MEANS)]
    compared = tables.against(comparison, baseline)
    if len(compared):
        blocks.append(tabular(compared.rename_axis("setting").reset_index(), AGAINST.format(escape_latex(baseline))))
    if power := _power(comparison):
        rounded = [(seeds, f"{least:.2f}") for seeds, least in power.items()]
        blocks.append(tabular(pd.DataFrame(rounded, columns=["seeds", "difference"]), DETECTED))
    return blocks


def _power(comparison: Comparison) -> dict[int, float]:
    """Compute the smallest difference that each number of seeds can tell, without those that can tell none."""
    arrays = comparison.tested
    found = {seeds: statistics.detectable_difference(arrays, seeds) for seeds in NUMBERS_OF_SEEDS} if arrays else {}
    return {seeds: least for seeds, least in found.items() if not math.isnan(least)}


def _figures(comparison: Comparison, out: Path) -> list[str]:
    """Draw the learning curves and the performance profiles, and return what includes them."""
    names = {"curves": CURVES}
    file = out / f"{comparison.name}-curves.png"
    with plots.panels(comparison, file, min(COLUMNS, len(comparison.envs)), WIDTH, 1.6) as drawn:
        for axes in drawn.values():
            axes.tick_params(labelsize=plots.SMALL_TEXT - 2)
            axes.ticklabel_format(axis="x", scilimits=(0, 0))
    if comparison.arrays:
        names["profiles"] = PROFILES
        file = out / f"{comparison.name}-profiles.png"
        plots.draw_profiles(comparison.arrays, comparison.labels, file, size=(WIDTH, 3), below=True)
    return [FIGURE_TEMPLATE.format(f"{comparison.name}-{name}.pdf", said) for name, said in names.items()]


def collect_findings(comparison: Comparison) -> Values:
    """Collect the scores and what the tests say about them, as JSON-serialisable values."""
    frame, arrays = comparison.table, comparison.arrays
    settings = {
        each.label: {
            "mean": spread(each.value),
            "seeds": each.seeds,
            "rank": each.ranks,
            "better_than": each.better,
            "worse_than": each.worse,
        }
        for each in comparison.ranking
    }
    pairs = [
        {
            "setting": label,
            "other": other,
            "difference": spread(found.estimate),
            "p": None if math.isnan(found.p) else found.p,
            "probability_of_improvement": spread(statistics.probability_of_improvement(arrays[label], arrays[other])),
            "equivalent": comparison.are_equivalent(label, other),
        }
        for (label, other), found in comparison.differences.items()
    ]
    return {
        "title": comparison.title,
        "conditions": comparison.conditions,
        "random_policy": comparison.random_scores,
        "without_scale": comparison.without_scale,
        "incomplete": comparison.incomplete,
        "doubts": comparison.doubts,
        "warnings": tables.warn_of_scale(comparison),
        "failed": [{name: record[name] for name in ("label", "env", "seed")} for record in comparison.failed],
        "runs": frame.astype(object).where(frame.notna(), None).to_dict("records"),
        "settings": settings,
        "pairs": pairs,
        "detectable_difference": _power(comparison),
    }


def spread(estimate: Estimate) -> Values:
    """Convert an estimate for JSON, which has no NaN."""
    ends = {"low": estimate.low, "high": estimate.high} if estimate.is_certain else {"low": None, "high": None}
    return {"value": estimate.value, **ends}


def escape_latex(text: str) -> str:
    """Escape text, so that LaTeX shows it unchanged."""
    return "".join(LATEX_LETTERS.get(letter, letter) for letter in text)


def tabular(frame: pd.DataFrame, caption: str) -> str:
    """Make a table with booktabs's rules, which is made smaller if it is wider than the page.

    :param caption: LaTeX, in which everything special is escaped
    """
    cells = frame.astype(object).where(frame.notna(), "")
    rows = [[str(value) for value in row] for row in [frame.columns, *cells.to_numpy()]]
    is_long = [max(len(row[column]) for row in rows) > LONGEST_IN_LINE for column in range(len(frame.columns))]
    columns = "".join(r">{\raggedright\arraybackslash}p{0.6\textwidth}" if long else "l" for long in is_long)
    # Values such as import paths have no spaces at which a line could end.
    breaking = {long: r"\_\allowbreak{}" if long else r"\_" for long in (False, True)}
    head, *body = (
        " & ".join(escape_latex(cell).replace(r"\_", breaking[long]) for cell, long in zip(row, is_long, strict=True))
        + r" \\"
        for row in rows
    )
    rules = [r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    fitted = r"\adjustbox{max width=\textwidth,max totalheight=0.8\textheight}{\begin{tabular}"
    begin = [r"\begin{table}[htbp]", r"\centering\small", rf"\caption{{{caption}}}", rf"{fitted}{{{columns}}}"]
    return "\n".join([*begin, *rules, r"\end{tabular}}", r"\end{table}"])
