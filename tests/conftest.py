import pytest
import torch as th


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    th.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    th.manual_seed(0)
