"""Measure the variants: what they learn, how fast they train, and what their guards cost."""

import ast
import sys
from argparse import ArgumentParser
from functools import partial
from importlib import import_module
from pathlib import Path

from sb3_ppo_variants.arguments.commandline import Command, run_command
from sb3_ppo_variants.benchmark.compare import options

# The module of each tool, by the name of its command.
TOOLS = {
    "cold": "cold",
    "figures": "figures.command",
    "gallery": "gallery",
    "guard": "guard",
    "interpolation": "figures.interpolation",
    "kl-estimators": "figures.estimators",
    "paths": "paths",
    "peers": "peers",
    "scaling": "scaling",
    "scaling-learning": "scaling_learning",
    "stepping": "stepping",
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
    """Run the tool that the command line names; see :func:`run_command`. It also runs ``compare`` and the like."""
    commands = {name: _tool(path) for name, path in TOOLS.items()} | options.COMMANDS
    return run_command("python -m sb3_ppo_variants.benchmark", __doc__, dict(sorted(commands.items())), arguments)


if __name__ == "__main__":
    sys.exit(main())
