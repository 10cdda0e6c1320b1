"""Upload a trained agent to the Hugging Face Hub: ``rl_zoo3.push_to_hub`` with this package's algorithms."""

from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sb3_ppo_variants.zoo.launch import check_installed, launch


def push_to_hub() -> None:
    """Run rl_zoo3's script so that it starts, and so that the card it writes names this package.

    rl_zoo3 2.9.2 imports ``generate_metadata``, which sb3-team-hf-integration 3 calls ``_generate_metadata``, and which
    returns an object there in place of a dict.

    :raises ImportError: if rl_zoo3 is not installed, saying how to install it
    """
    check_installed()
    from huggingface_hub import repocard

    # The package has a function of this module's name.
    integration: Any = import_module("huggingface_sb3.push_to_hub")

    def generate_metadata(*args: Any) -> dict[str, Any]:
        return integration._generate_metadata(*args).to_dict()

    metadata_save = repocard.metadata_save

    def save_card(path: Path, metadata: dict[str, Any]) -> None:
        path.write_text(card(path.read_text(encoding="utf-8")), encoding="utf-8")
        metadata_save(path, metadata)

    with (
        patch.object(integration, "generate_metadata", generate_metadata, create=True),
        patch.object(repocard, "metadata_save", save_card),
    ):
        launch("push_to_hub")


def card(text: str) -> str:
    """rl_zoo3's model card with the commands that know this package's algorithms."""
    return text.replace("python -m rl_zoo3.", "python -m sb3_ppo_variants.zoo.").replace(
        "pip install rl_zoo3", "pip install 'sb3_ppo_variants[zoo]'"
    )


if __name__ == "__main__":
    push_to_hub()
