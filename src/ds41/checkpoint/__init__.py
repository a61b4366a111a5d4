"""Checkpoints as they are released: official names, shapes and types, read and written.

What a checkpoint holds follows from its configuration (:func:`inventory`). Of the released 96,085 tensors this
package reads and writes the 93,418 of backbone and Engram; :func:`missing_parts` lists the others.
"""

from ds41.checkpoint.files import CheckpointError
from ds41.checkpoint.inspection import Inspection, inspect_checkpoint
from ds41.checkpoint.inventory import TensorInfo, inventory, missing_parts
from ds41.checkpoint.loading import load_checkpoint
from ds41.checkpoint.saving import save_checkpoint

__all__ = [
    "CheckpointError",
    "Inspection",
    "TensorInfo",
    "inspect_checkpoint",
    "inventory",
    "load_checkpoint",
    "missing_parts",
    "save_checkpoint",
]
