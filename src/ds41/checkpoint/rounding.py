"""What saving does to weights, without a file: for training that is to see the values that will be stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from ds41.checkpoint.inventory import weights
from ds41.checkpoint.names import official_name
from ds41.config import ModelConfig
from ds41.weight_formats import RowFormat


def rounded_weights(
    config: ModelConfig, parameters: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """For each parameter of a model or of another part of a checkpoint, by path, the values that would be kept of it.

    They have the parameter's own type. Parameters that a checkpoint keeps whole (F32) are left out.
    """
    stored = {weight.name: weight.stored for weight in weights(config)}
    for path, parameter in parameters:
        prefix, is_expert, matrix = path.partition(".experts.")
        kept = stored[f"{prefix}.experts.0.{matrix}.weight" if is_expert else official_name(path)]
        values = parameter.detach()
        if kept == "BF16":
            yield path, values.to(torch.bfloat16).to(values.dtype)
        elif kept != "F32":
            # Rows have scales of their own, so experts may stay stacked; tiles may not.
            whole = values.dim() == 2 or isinstance(kept, RowFormat)
            pieces = [values] if whole else list(values)
            decoded = [kept.decode(kept.encode(piece), values.dtype) for piece in pieces]
            yield path, decoded[0] if whole else torch.stack(decoded)
