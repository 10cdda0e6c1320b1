"""Write the current results of the Table 1 study into its page."""

import argparse
from pathlib import Path

from sb3_ppo_variants.compare import records
from sb3_ppo_variants.errors import ArgumentError
from sb3_ppo_variants.saving.atomic import write_atomically

# Lines of the page, between which the text is replaced.
BEGIN = "<!-- What follows is made by `python -m sb3_ppo_variants study`. -->"
END = "<!-- This is the end of what is made. -->"


def run(options: argparse.Namespace) -> int:
    """Write tables and a picture of the records into the page, and save the picture in a folder of the same name."""
    parts = [records.unpack(file) for file in options.files]
    found, twice = records.merged(record for part, _ in parts for record in part)
    for problem in [*(line for _, part in parts for line in part), *twice]:
        print(problem)
    page: Path = options.page
    before, after = _around(page)
    made = _made(found, page.with_suffix(""))
    write_atomically(page, "\n\n".join([f"{before}{BEGIN}", *made, f"{END}{after}"]).encode())
    print(f"Page: {page}")
    return 0


def _around(page: Path) -> tuple[str, str]:
    """Return the text before and after the generated part of a page."""
    try:
        text = page.read_text()
    except OSError as error:
        raise ArgumentError(f"--page {page} cannot be read: {error}") from error
    if not text.count(BEGIN) == text.count(END) == 1:
        raise ArgumentError(f"--page {page} must contain these two lines, to write between them:\n{BEGIN}\n{END}")
    before, _, rest = text.partition(BEGIN)
    return before, rest.partition(END)[2]


def _made(found: list[records.Record], folder: Path) -> list[str]:
    from sb3_ppo_variants.compare import scores, study, tables

    reached = study.outcomes(scores.comparisons(found))
    if not reached:
        raise ArgumentError("there are no finished runs of --preset table1-study in these records")
    folder.mkdir(exist_ok=True)
    study.draw(reached, folder / "scores.png")
    picture = f"{folder.name}/scores"
    return [
        study.counted(reached),
        "### The order of the four settings",
        study.overview(reached),
        study.explained(reached),
        f"![Scores under each of the conditions]({picture}.png)",
        f"{study.PICTURED}\n[SVG]({picture}.svg), [PDF]({picture}.pdf).",
        "### Scores",
        "Mean return of the last 100 episodes over seeds, ± standard deviation, and the number of seeds.",
        *tables.across([outcome.comparison for outcome in reached], level=4),
    ]
