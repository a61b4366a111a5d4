"""Choose how Triton kernels run in this test session, before any test module can import triton."""

import importlib.util
import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ci"))

from checkout import use_checkout

# Without a GPU, kernels run under Triton's interpreter; with one, natively, on the device.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

use_checkout()

# The kernel tests run without hypothesis, where a machine with a GPU has little more than torch.
if importlib.util.find_spec("hypothesis") is not None:
    from hypothesis import settings

    # A busy machine is no failure: examples have no time limit of their own.
    settings.register_profile("ds41", deadline=None)
    settings.load_profile("ds41")

# Tiny tensors gain nothing from a second thread, and on a busy machine wait for it.
torch.set_num_threads(1)
