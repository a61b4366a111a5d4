import pytest
import torch


@pytest.fixture(scope="session")
def device() -> torch.device:
    """Where kernels run here: the GPU if there is one, otherwise the CPU under Triton's interpreter."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
