"""What a checkpoint folder holds, beside what its configuration calls for; no weight is read for it.

Source: ds41's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ds41.checkpoint.files import CONFIG_FILE, CheckpointError, TensorFiles
from ds41.checkpoint.inventory import PARTS, Part, TensorInfo, inventory
from ds41.config import ModelConfig

# How the tensors of the parts beside the model begin: a configuration may know nothing of what its folder holds.
_NAMES: dict[Part, str] = {"model": "model", "drafter": "drafter", "vision": "vision part"}
_BEGINNINGS: dict[Part, tuple[str, ...]] = {"drafter": ("mtp.",), "vision": ("vision.", "aligner.", "image_")}


@dataclass(frozen=True)
class Inspection:
    """A folder's tensors, by what reading one part of it makes of them.

    tensors: those that are read. left_out: of the other parts. missing, unexpected: names. misfits: one line for each
    tensor of another shape or type than the configuration's. nbytes: of ``tensors``, as stored.
    """

    folder: Path
    config: ModelConfig
    part: Part
    files: tuple[Path, ...]
    tensors: dict[str, TensorInfo]
    left_out: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misfits: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors that were found."""
        return sum(info.nbytes for info in self.tensors.values())

    @property
    def faults(self) -> list[str]:
        """What keeps the checkpoint from being loaded, one line each."""
        where = self.files[0] if len(self.files) == 1 else self.folder
        if self.part != "model" and not self.tensors and not self.unexpected:
            return [f"{where} holds no {_NAMES[self.part]}"]
        faults = [f"{where} lacks {_listed(self.missing)}"] if self.missing else []
        if self.unexpected:
            faults.append(f"{where} holds {_listed(self.unexpected)}, which {CONFIG_FILE} has no place for")
        return faults + list(self.misfits)


def inspect_checkpoint(folder: str | Path, part: Part = "model") -> Inspection:
    """Compare a folder's tensors with its configuration.

    Raises:
        CheckpointError: the files cannot be read at all. ConfigError: nor can ``config.json``.
    """
    return inspect(TensorFiles(folder), part)


def inspect(files: TensorFiles, part: Part = "model") -> Inspection:
    config = ModelConfig.from_json(files.folder / CONFIG_FILE)
    expected = inventory(config, part)
    elsewhere = inventory(config, [other for other in PARTS if other != part])
    beginnings = tuple(b for other, names in _BEGINNINGS.items() if other != part for b in names)
    tensors = {name: files.info(name) for name in files.names if name in expected}
    others = [name for name in files.names if name not in expected]
    left_out = dict.fromkeys(name for name in others if name in elsewhere or name.startswith(beginnings))
    return Inspection(
        folder=files.folder,
        config=config,
        part=part,
        files=tuple(files.paths),
        tensors=tensors,
        left_out=tuple(left_out),
        missing=tuple(name for name in expected if name not in files),
        unexpected=tuple(name for name in others if name not in left_out),
        misfits=tuple(
            f"{files.path(name)}: {name} is {info}; {CONFIG_FILE} calls for {expected[name]}"
            for name, info in tensors.items()
            if info != expected[name]
        ),
    )


def require_loadable(found: Inspection) -> None:
    if found.faults:
        more = f" (and {len(found.faults) - 1} more faults)" if len(found.faults) > 1 else ""
        raise CheckpointError(found.faults[0] + more)


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more tensors"
