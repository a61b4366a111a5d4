"""The order of the test files: those that take longest go first.

Files are handed to workers whole. A long one that begins when the rest is done leaves every other worker idle.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
# By the CPU seconds of their tests; those above ten seconds.
LONGEST = (
    "test_model_cached.py",
    "serving/test_engine_drafting.py",
    "test_cli_chat.py",
    "test_replay.py",
    "test_kernel_path.py",
    "serving/test_handover.py",
    "serving/test_engine.py",
    "training/test_training_workers.py",
    "serving/test_store_machine.py",
    "training/test_cli_evaluate_part.py",
    "test_ci_runner.py",
    "dspark/test_decoding.py",
    "kernels/test_sparse_attention.py",
    "kernels/test_compile.py",
    "training/test_cli_train.py",
    "serving/test_store_kill.py",
    "kernels/test_drafter_kernels.py",
    "dspark/test_verification.py",
    "kernels/test_grouped_experts.py",
    "serving/test_engine_machine.py",
    "kernels/test_hyper_connection_kernels.py",
    "test_ci_gpu_check.py",
    "serving/test_pools_ray.py",
    "serving/test_pools_stress.py",
    "probes/test_replay_positions.py",
    "test_checkpoint_parts.py",
)
_PLACES = {FOLDER / name: place for place, name in enumerate(LONGEST)}


def place(path: Path) -> int:
    """What to sort files by; files that are not named keep their order."""
    return _PLACES.get(path, len(LONGEST))
