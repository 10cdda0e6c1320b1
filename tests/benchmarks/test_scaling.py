"""The measurements of several processes that train together."""

import pytest

from benchmarks import scaling
from benchmarks.__main__ import main


@pytest.mark.slow
def test_processes_say_why_they_fail() -> None:
    with pytest.raises(SystemExit, match=r"(?s)failed:\n.*missing 4 required positional arguments"):
        scaling.launch(1, "PPOClip", "Pong-v99")


def test_processes_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["scaling", "--processes", "0"])
    assert "argument --processes: must be an integer >= 1, not 0" in capsys.readouterr().err
