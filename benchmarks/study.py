"""Write the current results of the study of Table 1 into its page."""

import argparse
from pathlib import Path

from sb3_ppo_variants.compare import records, scores, study, tables
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.saving.atomic import write_atomically

RESULTS = Path("results/table1-study.jsonl.gz")
PAGE = Path("docs/table1-study.md")
# Lines of the page, between which the text is replaced.
BEGIN = "<!-- What follows is made by `python -m benchmarks study`. -->"
END = "<!-- This is the end of what is made. -->"


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument(
        "--from", dest="files", type=Path, nargs="+", default=[RESULTS], help=f"exported records (default: {RESULTS})"
    )
    parser.add_argument("--page", type=Path, default=PAGE, help="page to write into (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    """Write tables and a picture of the records into the page, and save the picture in a folder of the same name."""
    found, problems = records.load_records(None, options.files)
    for problem in problems:
        print(problem)
    page: Path = options.page
    try:
        text = page.read_text()
    except OSError as error:
        raise ArgumentError(f"--page {page} cannot be read: {error}") from error
    if not text.count(BEGIN) == text.count(END) == 1:
        raise ArgumentError(f"--page {page} must contain these two lines, to write between them:\n{BEGIN}\n{END}")
    reached = study.outcomes(scores.comparisons(found))
    if not reached:
        raise ArgumentError("there are no finished runs of --preset table1-study in these records")
    folder = page.with_suffix("")
    folder.mkdir(exist_ok=True)
    study.draw_study(reached, folder / "scores.png")
    picture = f"{folder.name}/scores"
    before, _, rest = text.partition(BEGIN)
    blocks = [
        f"{before}{BEGIN}",
        study.progress(reached),
        "### The order of the four settings",
        *study.tabulate(reached),
        f"![Scores under each of the conditions]({picture}.png)",
        f"{study.PICTURED}\n[SVG]({picture}.svg), [PDF]({picture}.pdf).",
        "### Scores",
        "Mean return of the last 100 episodes over seeds, ± standard deviation, and the number of seeds.",
        *tables.across([outcome.comparison for outcome in reached], level=4),
        f"{END}{rest.partition(END)[2]}",
    ]
    write_atomically(page, "\n\n".join(blocks).encode())
    print(f"Page: {page}")
    return 0
