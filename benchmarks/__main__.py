"""Measure the package: how fast it trains, and what the pages say about it."""

import argparse
import ast
import sys
from importlib import import_module
from pathlib import Path

from sb3_ppo_variants.commandline import errors_in_a_line

# The module of each tool, by the name of its command.
TOOLS = {
    "agents": "agents",
    "figures": "figures.command",
    "gallery": "gallery",
    "interpolation": "figures.interpolation",
    "kl-estimators": "figures.estimators",
    "peers": "peers",
    "reports": "reports",
    "robustness": "robustness.command",
    "scaling": "scaling",
    "stepping": "stepping",
    "threads": "threads",
    "throughput": "throughput",
    "verdicts": "verdicts",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the tool that the command line names, whose module alone is imported."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parsers = parser.add_subparsers(required=True, metavar="command", dest="command")
    arguments = sys.argv[1:] if arguments is None else arguments
    with errors_in_a_line():
        for name, path in TOOLS.items():
            file = Path(__file__).parent / f"{path.replace('.', '/')}.py"
            says = ast.get_docstring(ast.parse(file.read_text()))
            tool = parsers.add_parser(name, help=says, description=says, allow_abbrev=False)
            if name in arguments[:1]:
                import_module(f"benchmarks.{path}").add_command(tool)
        options = parser.parse_args(arguments)
        code: int = import_module(f"benchmarks.{TOOLS[options.command]}").run(options)
    return code


if __name__ == "__main__":
    sys.exit(main())
