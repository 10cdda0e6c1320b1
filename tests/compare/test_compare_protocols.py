"""Reports say which protocol settings follow if some or all of them have their own."""

from pathlib import Path
from typing import Any

import pytest
from comparing import CONDITIONS, RECORDS, record, text_of, write

from sb3_ppo_variants.__main__ import main
from sb3_ppo_variants.compare import scores
from sb3_ppo_variants.compare.tables import summarize

TEXT = {**CONDITIONS, "protocol": "text"}


def compared(*labels: str, conditions: dict[str, Any] = TEXT) -> scores.Comparison:
    (found,) = scores.comparisons(record(label, "A-v0", 0, 1.0, conditions=conditions) for label in labels)
    return found


def test_some_settings_have_their_own() -> None:
    own = "; settings with a protocol of their own follow that"
    both = compared("sb3_ppo protocol=sb3", "ppo_clip")
    assert both.title == "A-v0, protocol text" and f"- protocol: text{own}\n" in summarize(both)
    assert "- protocol: text\n" in summarize(compared("sb3_ppo", "ppo_clip"))
    several = compared("sb3_ppo protocol=sb3", "ppo_clip protocol=released-code")
    assert several.title == "A-v0, protocol text" and f"- protocol: text{own}\n" in summarize(several)


def test_all_settings_have_the_same() -> None:
    conditions = {**TEXT, "preset": "paper-table1", "normalize": False, "anneal": False}
    found = compared("sb3_ppo protocol=sb3", "ppo_clip n_epochs=5, protocol=sb3", conditions=conditions)
    assert found.title == "A-v0, protocol sb3"
    said = summarize(found)
    assert "- protocol: sb3\n" in said
    assert not any(words in said for words in ("of their own", "preset", "VecNormalize", "annealed"))
    assert compared("ppo_clip", conditions=conditions).title == "paper-table1, protocol text"


@pytest.mark.usefixtures("blank_pictures")
def test_a_setting_with_its_own_protocol_does_not_set_the_scale(tmp_path: Path) -> None:
    other = [record("sb3_ppo protocol=sb3", env, 0, score) for env, score in (("A-v0", 210), ("B-v0", 30))]
    write(tmp_path, [*RECORDS, *other])
    assert main(["report", "--out", str(tmp_path)]) == 0
    text = text_of(tmp_path / "report.md")
    assert "do not set this scale" in text and "| sb3_ppo protocol=sb3 | 1 | 1 to 3 | 2.00 |" in text
    write(tmp_path / "alone", [*RECORDS[:2], *other])
    assert main(["report", "--out", str(tmp_path / "alone")]) == 0
    alone = text_of(tmp_path / "alone" / "report.md")
    assert "do not set this scale" not in alone and "| sb3_ppo protocol=sb3 | 1 | 1 | 1.00 |" in alone
