"""Choose how Triton kernels run in this test session, before any test module can import triton, and what runs first."""

import importlib.util
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ci"))

from checkout import use_checkout
from file_order import place

# Without a GPU, kernels run under Triton's interpreter; with one, natively, on the device.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    if importlib.util.find_spec("triton") is not None:
        import quick_interpreter

        quick_interpreter.install()

use_checkout()

# The kernel tests run without hypothesis, where a machine with a GPU has little more than torch.
if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import settings

    # A busy machine is no failure: examples have no time limit of their own.
    settings.register_profile("ds41", deadline=None)
    settings.load_profile("ds41")


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: place(item.path))


# Tiny tensors gain nothing from a second thread, and on a busy machine wait for it.
torch.set_num_threads(1)
