"""Measure the package: how fast it trains, and what the pages say about it."""

import ast
import sys
from argparse import ArgumentParser
from functools import partial
from importlib import import_module
from pathlib import Path

from sb3_ppo_variants.commandline import Command, run_command

# The module of each tool, by the name of its command.
TOOLS = {
    "agents": "agents",
    "figures": "figures.command",
    "gallery": "gallery",
    "interpolation": "figures.interpolation",
    "kl-estimators": "figures.estimators",
    "parts": "parts",
    "peers": "peers",
    "reports": "reports",
    "robustness": "robustness.command",
    "scaling": "scaling",
    "stepping": "stepping",
    "threads": "threads",
    "throughput": "throughput",
    "verdicts": "verdicts",
}


def _tool(path: str) -> Command:
    """Return the command of a module, which is imported when the command is used."""
    file = Path(__file__).parent / f"{path.replace('.', '/')}.py"
    module = f"{__package__}.{path}"
    return Command(ast.get_docstring(ast.parse(file.read_text())) or "", partial(_add_options, module), module)


def _add_options(module: str, parser: ArgumentParser) -> None:
    import_module(module).add_command(parser)


def main(arguments: list[str] | None = None) -> int:
    """Run the tool that the command line names; see :func:`run_command`."""
    commands = {name: _tool(path) for name, path in TOOLS.items()}
    return run_command("python -m benchmarks", __doc__, commands, arguments)


if __name__ == "__main__":
    sys.exit(main())
