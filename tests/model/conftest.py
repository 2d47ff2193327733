"""Settings of the golden model's tests."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The tensors are so small that threads only cost time."""
    torch.set_num_threads(1)
