"""Several workers under torchrun: parameters sharded by FSDP2, rows split, loads summed.

Outside of torchrun there is one worker, and nothing here does anything.

Source: torch's ``fully_shard``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import TracebackType

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from ds41.model import Model

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
_SPREAD = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


@dataclass(frozen=True)
class Workers:
    """rank of this process, count of all, the device that this one computes on."""

    rank: int = 0
    count: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    def of_environment(cls, device: torch.device) -> Workers:
        """What torchrun set in this process's environment; one worker without it."""
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls(device=device)
        rank = int(os.environ["RANK"])
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(rank, count, device)

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.count > 1:
            dist.destroy_process_group()

    def shard(self, model: Model) -> None:
        """Every layer's parameters, and then the rest, over all workers."""
        if self.count == 1:
            return
        # Router biases are moved by a rule, not by a gradient: every worker keeps and moves its own copy.
        fixed = {parameter for parameter in model.parameters() if not parameter.requires_grad}
        for block in model.layers:
            # Signals are read between forward and backward, so a layer's parameters stay whole until then.
            fully_shard(block, reshard_after_forward=False, ignored_params=fixed)
        fully_shard(model, reshard_after_forward=False, ignored_params=fixed)

    def rows(self, rows: int) -> tuple[int, int]:
        """(first, count) of the rows of a step that are this worker's.

        Raises:
            ValueError: the rows do not divide among the workers.
        """
        if rows % self.count:
            raise ValueError(f"a step has {rows} rows for {self.count} workers; expected a multiple")
        each = rows // self.count
        return self.rank * each, each

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """Sum over the workers of ``value`` [...], in place."""
        if self.count > 1:
            dist.all_reduce(value)
        return value

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Mean over the workers of ``value`` [...], in the same shape; ``value`` stays as it is."""
        return self.total(value.clone()) / self.count

    def state(self, model: Model, optimizers: tuple[Optimizer, ...]) -> tuple[dict, list[dict]]:
        """Whole states, on the first worker; the others get empty ones."""
        if self.count == 1:
            return model.state_dict(), [optimizer.state_dict() for optimizer in optimizers]
        states = [get_optimizer_state_dict(model, optimizer, options=_WHOLE) for optimizer in optimizers]
        return get_model_state_dict(model, options=_WHOLE), states

    def restore(self, model: Model, optimizers: tuple[Optimizer, ...], whole: dict, states: list[dict]) -> None:
        """The inverse of :meth:`state`."""
        if self.count == 1:
            model.load_state_dict(whole)
            for optimizer, state in zip(optimizers, states, strict=True):
                optimizer.load_state_dict(state)
            return
        set_model_state_dict(model, whole, options=_SPREAD)
        for optimizer, state in zip(optimizers, states, strict=True):
            set_optimizer_state_dict(model, optimizer, _by_name(model, optimizer, state), options=_SPREAD)


def _by_name(model: Model, optimizer: Optimizer, state: dict) -> dict:
    """An optimiser's state with parameters by name, which one worker alone stores by number, in the same order."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    ordered = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    stored = [key for group in state["param_groups"] for key in group["params"]]
    name_of = dict(zip(stored, ordered, strict=True))
    groups = [group | {"params": [name_of[key] for key in group["params"]]} for group in state["param_groups"]]
    return {"state": {name_of[key]: value for key, value in state["state"].items()}, "param_groups": groups}
