"""What a checkpoint folder holds, beside what its configuration calls for; no weight is read for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ds41.checkpoint.files import CONFIG_FILE, CheckpointError, TensorFiles
from ds41.checkpoint.inventory import TensorInfo, inventory
from ds41.config import ModelConfig

# Parts that this package has no model for; ds41.checkpoint.missing_parts lists their tensors.
_LEFT_OUT = ("mtp.", "vision.", "aligner.", "image_")


@dataclass(frozen=True)
class Inspection:
    """A folder's tensors by what :func:`load_checkpoint` makes of them.

    tensors: those that it reads. left_out: of the drafter and the vision parts, never read. missing, unexpected:
    names. misfits: one line for each tensor of another shape or type than the configuration's. nbytes: of ``tensors``,
    as stored.
    """

    folder: Path
    config: ModelConfig
    files: tuple[Path, ...]
    tensors: dict[str, TensorInfo]
    left_out: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    misfits: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        return sum(info.nbytes for info in self.tensors.values())

    @property
    def faults(self) -> list[str]:
        """What keeps the checkpoint from being loaded, one line each."""
        where = self.files[0] if len(self.files) == 1 else self.folder
        faults = [f"{where} lacks {_listed(self.missing)}"] if self.missing else []
        if self.unexpected:
            faults.append(f"{where} holds {_listed(self.unexpected)}, which {CONFIG_FILE} has no place for")
        return faults + list(self.misfits)


def inspect_checkpoint(folder: str | Path) -> Inspection:
    """Compare a folder's tensors with its configuration.

    Raises:
        CheckpointError: the files cannot be read at all. ConfigError: nor can ``config.json``.
    """
    return inspect(TensorFiles(folder))


def inspect(files: TensorFiles) -> Inspection:
    config = ModelConfig.from_json(files.folder / CONFIG_FILE)
    expected = inventory(config)
    known = [name for name in files.names if name in expected]
    tensors = {name: files.info(name) for name in known}
    others = [name for name in files.names if name not in expected]
    left_out = tuple(name for name in others if name.startswith(_LEFT_OUT))
    return Inspection(
        folder=files.folder,
        config=config,
        files=tuple(files.paths),
        tensors=tensors,
        left_out=left_out,
        missing=tuple(name for name in expected if name not in files),
        unexpected=tuple(name for name in others if not name.startswith(_LEFT_OUT)),
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
