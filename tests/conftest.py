"""Choose how Triton kernels run in this test session, before any test module can import triton."""

import os

import torch
from hypothesis import settings

# A busy machine is no failure: examples have no time limit of their own.
settings.register_profile("ds41", deadline=None)
settings.load_profile("ds41")

# Tiny tensors gain nothing from a second thread, and on a busy machine wait for it.
torch.set_num_threads(1)

# Without a GPU, kernels run under Triton's interpreter; with one, natively, on the device.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
