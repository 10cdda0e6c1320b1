"""Run rounds of the fuzz targets, each with different examples, for ``FUZZ_SECONDS`` or until one fails."""

import os
import sys
import time
from itertools import count
from pathlib import Path

import pytest


def main() -> int:
    seconds = float(os.environ.setdefault("FUZZ_SECONDS", "3600"))
    first = int(os.environ.get("FUZZ_SEED", time.time_ns() % 10**9))
    end = time.monotonic() + seconds
    for seed in count(first):
        left = end - time.monotonic()
        if left <= 0:
            return 0
        print(f"{left:.0f} seconds are left; this round has FUZZ_SEED={seed}", flush=True)
        failed = pytest.main([str(Path(__file__).parent), f"--hypothesis-seed={seed}", "-q", *sys.argv[1:]])
        if failed:
            return int(failed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
