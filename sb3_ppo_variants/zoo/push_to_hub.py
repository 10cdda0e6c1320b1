"""Upload a trained agent to the Hugging Face Hub: ``rl_zoo3.push_to_hub`` with this package's algorithms."""

import runpy
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from huggingface_hub import repocard
from huggingface_hub.repocard import metadata_save

from sb3_ppo_variants.errors import installation


def push_to_hub() -> None:
    """Run rl_zoo3's script, with its import fixed and with this package's commands in the model card."""
    # "from huggingface_sb3 import push_to_hub" would import the function of the same name.
    integration: Any = import_module("huggingface_sb3.push_to_hub")
    # rl_zoo3 2.9.2 imports a function that sb3-team-hf-integration 3 has renamed, and that used to return a dict.
    integration.generate_metadata = lambda *args: integration._generate_metadata(*args).to_dict()
    with patch.object(repocard, "metadata_save", save_card):
        runpy.run_module("rl_zoo3.push_to_hub", run_name="__main__")


def save_card(path: Path, metadata: dict[str, object]) -> None:
    """Save the model card that rl_zoo3 has written, with commands that know this package's algorithms."""
    card = path.read_text(encoding="utf-8").replace("python -m rl_zoo3.", "python -m sb3_ppo_variants.zoo.")
    # A sentence repeats the command in parentheses, where a command with a comment does not fit.
    card = card.replace(" (`pip install rl_zoo3`)", "").replace("pip install rl_zoo3", installation("zoo"))
    path.write_text(card, encoding="utf-8")
    metadata_save(path, metadata)


if __name__ == "__main__":
    push_to_hub()
