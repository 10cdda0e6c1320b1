"""Runs the scripts of the documentation site."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

STATIC = Path(__file__).parent.parent / "docs" / "_static"
NODE = shutil.which("node")


def evaluate(expression: str, *scripts: Path) -> Any:
    """Evaluate an expression after scripts, as JSON."""
    if NODE is None:
        pytest.skip("Node.js is not installed")
    code = "\n".join([*(script.read_text() for script in scripts), f"console.log(JSON.stringify({expression}));"])
    done = subprocess.run([NODE, "-"], input=code, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
