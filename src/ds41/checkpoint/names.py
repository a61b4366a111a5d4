"""Where in a model the weights of a checkpoint go.

The model's paths are the official names, but for parts that group what attention does, for the hyper-connections'
modules, and for the routed experts, which the model holds stacked.
"""

from __future__ import annotations

import torch
from torch import nn

from ds41.checkpoint.files import CheckpointError
from ds41.packed_experts import PackedExperts

_ATTENTION_GROUPS = ("query", "window", "keys", "output")


def module_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """Official name -> the parameter's memory, or that of one expert in it; nothing is copied.

    Args:
        module: a :class:`ds41.model.Model`, or the module of another part of a checkpoint.

    Raises:
        CheckpointError: the experts are packed.
    """
    if any(isinstance(each, PackedExperts) for each in module.modules()):
        raise CheckpointError("the model's experts are packed for inference; save it before pack_experts()")
    found = {}
    for path, parameter in module.named_parameters():
        tensor = parameter.detach()
        prefix, is_expert, matrix = path.partition(".experts.")
        if is_expert:
            found.update({f"{prefix}.experts.{number}.{matrix}.weight": each for number, each in enumerate(tensor)})
        else:
            found[official_name(path)] = tensor
    return found


def official_name(path: str) -> str:
    """The checkpoint's name of a parameter that is not a stacked expert."""
    parts = path.split(".")
    if "attn" in parts:
        parts = [part for part in parts if part not in _ATTENTION_GROUPS]
    for site in ("hc_attn", "hc_ffn"):
        if site in parts:
            *outer, _, parameter = parts
            parts = [*outer, f"{site}_{parameter}"]
    return ".".join(parts)
