"""Checkpoints as they are released: official names, shapes and types, read and written.

What a checkpoint holds follows from its configuration (:func:`inventory`): the model, that is backbone and Engram;
the drafter; the vision tower. They are read one by one and written together.
"""

from ds41.checkpoint.files import CheckpointError
from ds41.checkpoint.inspection import Inspection, inspect_checkpoint
from ds41.checkpoint.inventory import PARTS, Part, TensorInfo, inventory
from ds41.checkpoint.loading import load_checkpoint, load_part
from ds41.checkpoint.saving import save_checkpoint

__all__ = [
    "PARTS",
    "CheckpointError",
    "Inspection",
    "Part",
    "TensorInfo",
    "inspect_checkpoint",
    "inventory",
    "load_checkpoint",
    "load_part",
    "save_checkpoint",
]
