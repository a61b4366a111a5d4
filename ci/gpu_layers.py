"""Layers on kernels: how many launches each mode takes, and one decode layer as a CUDA graph."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch

# Tokens before the step, more than any layer selects, so that every indexer works.
CONTEXT = 160


@dataclass(frozen=True)
class LayerLaunches:
    """What one layer asks of the device: our kernels, torch's operators, and what the device was seen to run.

    device is None where no device was there to look at.
    """

    layer: int
    mode: str
    phase: str
    kernels: int
    torch: int
    device: int | None
    names: list[str]


@dataclass(frozen=True)
class GraphTimes:
    """One decode step of a Reuse layer, in milliseconds, and whether the replay gave the same bits."""

    eager_milliseconds: float
    graph_milliseconds: float
    same: bool


class Layers:
    """The layers of a configuration with random weights, without the rest of a model."""

    def __init__(self, config, device: torch.device, dtype: torch.dtype, batch: int = 1) -> None:
        from ds41.attention import KernelMemory
        from ds41.block import Block
        from ds41.cache import Cache
        from ds41.packed_experts import pack_experts

        self.config, self.device, self.dtype, self.batch = config, device, dtype, batch
        torch.manual_seed(0)
        with torch.device(device):
            blocks = [Block(config, plan, "cache", dtype) for plan in config.layers]
        self.blocks = pack_experts(torch.nn.ModuleList(blocks)).requires_grad_(False)
        self.cache = Cache(config, CONTEXT + 64, batch, dtype=dtype, device=device)
        # What is not written is read all the same; it should be numbers.
        self.cache.pool.data.zero_()
        for layer in range(config.num_hidden_layers):
            for part in self.cache.window_plane(layer):
                part.zero_()
        self.cache.reserve([CONTEXT] * batch)
        self.cache.advance([CONTEXT] * batch)
        self.memory = KernelMemory

    def enter(self, tokens: int):
        """What the first layer receives for ``tokens`` more tokens of each sequence; room is made for them."""
        from ds41.block import Hidden
        from ds41.hyper_connections import first_weights
        from ds41.step import Step

        n, width = self.config.hc_mult, self.config.hidden_size
        self.cache.reserve([tokens] * self.batch)
        step = Step.of([tokens] * self.batch, self.cache.lengths, self.device)
        streams = torch.randn(step.tokens, n, width, device=self.device).to(self.dtype)
        return Hidden(streams, first_weights(step.tokens, n, self.device), step, {}), self.memory(self.cache)


def small_config():
    """The nano preset without Engram: every layer mode, in sizes that the interpreter can run."""
    from ds41 import ModelConfig

    return dataclasses.replace(ModelConfig.nano(), engram_layer_ids=(), engram_num_embeddings=())


def wide_config():
    """The published sizes of a layer with few experts: a window layer, a source and a layer that reuses it."""
    from ds41 import ModelConfig

    return dataclasses.replace(
        ModelConfig.flash(),
        num_hidden_layers=3,
        compress_ratios=(0, 1, 1),
        kv_source_layer_ids=(1,),
        index_source_layer_ids=(1,),
        candidate_source_layer_id=-1,
        engram_layer_ids=(),
        engram_num_embeddings=(),
        n_routed_experts=16,
        num_nextn_predict_layers=0,
        dspark_target_layer_ids=(),
    )


@torch.no_grad()
def launches_by_layer(config, device: torch.device, dtype: torch.dtype, prefill: int = 8) -> list[LayerLaunches]:
    """Launches of the first layer of each mode, in a prefill of ``prefill`` tokens and in a decode step."""
    from ds41.ops.launches import count_launches

    layers = Layers(config, device, dtype)
    first_of = {}
    for plan in config.layers:
        first_of.setdefault((plan.mode, plan.ratio), plan.index)
    found = []
    for phase, tokens in (("prefill", prefill), ("decode", 1)):
        # Once to warm up: what is computed once for all layers of a step belongs to none of them.
        hidden, memory = layers.enter(tokens)
        for counted in (False, True):
            state, selections = hidden, {}
            for index, block in enumerate(layers.blocks):
                if not counted or index not in first_of.values():
                    state = block(state, memory, selections)
                    continue
                with count_launches() as launches:
                    after = block(state, memory, selections)
                seen = _seen_on_device(lambda: block(state, memory, dict(selections)), device)  # noqa: B023
                plan = config.layers[index]
                names = [*launches.kernels, *launches.torch]
                mode = f"{plan.mode} (ratio {plan.ratio})" if plan.ratio else plan.mode
                counts = (len(launches.kernels), len(launches.torch))
                found.append(LayerLaunches(index, mode, phase, *counts, seen, names))
                state = after
        layers.cache.advance([tokens] * layers.batch)
    return found


@torch.no_grad()
def layer_as_graph(config, device: torch.device, dtype: torch.dtype, batch: int = 1) -> GraphTimes:
    """Capture a decode step of the last layer, a Reuse layer, and replay it."""
    from triton.testing import do_bench

    layers = Layers(config, device, dtype, batch)
    hidden, memory = layers.enter(1)
    selections = {}
    for block in layers.blocks[:-1]:
        hidden = block(hidden, memory, selections)
    block = layers.blocks[-1]
    warmed = torch.cuda.Stream()
    warmed.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warmed):
        for _ in range(3):
            wanted = block(hidden, memory, selections).update.y
    torch.cuda.current_stream().wait_stream(warmed)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = block(hidden, memory, selections).update.y
    graph.replay()
    torch.cuda.synchronize()
    same = torch.equal(got, wanted)
    eager = do_bench(lambda: block(hidden, memory, selections), return_mode="median")
    return GraphTimes(eager, do_bench(graph.replay, return_mode="median"), same)


def _seen_on_device(run, device: torch.device) -> int | None:
    """Kernels that the device ran, by torch's profiler."""
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        run()
        torch.cuda.synchronize()
    events = (event for event in recorded.events() if event.device_type == torch.autograd.DeviceType.CUDA)
    return sum(not event.name.startswith(("Memcpy", "Memset")) for event in events)
