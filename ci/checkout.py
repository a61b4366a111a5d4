"""Makes ds41 importable from a checkout that is not installed: for machines with no more than torch and Triton."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def use_checkout() -> None:
    """Take ``ds41`` from src/ and ``ds41.kernels`` from kernels/, unless they are installed.

    A child process that needs it calls this too, as tests/conftest.py does.
    """
    if importlib.util.find_spec("ds41") is not None and importlib.util.find_spec("ds41.kernels") is not None:
        return
    source = str(ROOT / "src")
    if source not in sys.path:
        sys.path.insert(0, source)
    import ds41

    # An installation puts the folder of the kernels into the package; here the package is told where they lie.
    spec = importlib.util.spec_from_file_location(
        "ds41.kernels", ROOT / "kernels" / "__init__.py", submodule_search_locations=[str(ROOT / "kernels")]
    )
    kernels = importlib.util.module_from_spec(spec)
    sys.modules["ds41.kernels"] = kernels
    spec.loader.exec_module(kernels)
    ds41.kernels = kernels
