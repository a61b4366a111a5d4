"""DSpark's drafter: three layers that guess the next tokens in one pass, from what enters the target's last layers.

The target leaves one context row a token in each draft layer's window (:meth:`Drafter.follow`). A draft runs a block:
the token that was drawn last, then noise, all queries seeing the same window and the whole block. A Markov head then
corrects each guess by the one before it, in sequence.

Source: report section 2.4.3; DSpark paper; released ``DSparkBlock``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from ds41.attention import KernelMemory, Memory
from ds41.attention.memory import RoundTrip
from ds41.block import Block, Hidden
from ds41.cache import Cache, CacheError
from ds41.config import ConfigError, LayerPlan, ModelConfig
from ds41.dspark.block_memory import BlockMemory, KernelBlockMemory, block_choice
from ds41.formats import WINDOW_KV
from ds41.hyper_connections import collapse, first_weights, repeat_to_streams
from ds41.linear import Linear, Quantization
from ds41.model import Model
from ds41.norm import RMSNorm
from ds41.precision import float32_linear
from ds41.rope import layer_frequencies
from ds41.step import Step


class Drafts(NamedTuple):
    """k tokens for each of R sequences, for the positions after the token that was drawn last.

    ids: int64 [R, k]. logits: float32 [R, k, vocab], corrected, that each was picked from. confidence: float32 [R, k],
    logits of the probability that a draft is accepted if all before it are.
    """

    ids: torch.Tensor
    logits: torch.Tensor
    confidence: torch.Tensor


# From the logits [R, vocab] of one place in the block to the ids [R] that stand there.
Pick = Callable[[torch.Tensor], torch.Tensor]


class MarkovHead(nn.Module):
    """A correction of low rank to the logits of a token by the token before it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        c, rank = config, config.dspark_markov_rank
        self.embed = nn.Embedding(c.vocab_size, rank, dtype=torch.float32)
        nn.init.normal_(self.embed.weight, 0, c.initializer_range)
        self.head = Linear(rank, c.vocab_size, "bf16", dtype=torch.float32, std=c.initializer_range)


class ConfidenceHead(nn.Module):
    """Will this draft be accepted? One logit from the un-normalised output and the Markov embedding before it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        width = config.hidden_size + config.dspark_markov_rank
        self.proj = Linear(width, 1, "bf16", dtype=torch.float32, std=config.initializer_range)

    def forward(self, output: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
        """output [..., hidden], before [..., rank] -> float32 [...]."""
        x = torch.cat((output.to(torch.float32), before), -1)
        return float32_linear(x, self.proj.weight, "the confidence head's weight").squeeze(-1)


class Drafter(nn.Module):
    """The draft layers of a model; they share its embedding and head. Parameter names are a checkpoint's.

    Args: as of :class:`ds41.model.Model`, whose they should be.

    Raises:
        ConfigError: the configuration has no draft layers, or what they need.
    """

    def __init__(
        self, config: ModelConfig, quantization: Quantization = "cache", dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        _check(config)
        self.config, self.quantization, self.dtype = config, quantization, dtype
        inner = replace(
            config,
            n_routed_experts=config.dspark_n_routed_experts,
            num_experts_per_tok=config.dspark_num_experts_per_tok,
        )
        first = config.num_hidden_layers
        self.mtp = nn.ModuleList(
            Block(inner, LayerPlan(first + number, "decoder", 0, "window", None, None, None), quantization, dtype)
            for number in range(config.num_nextn_predict_layers)
        )
        hidden = config.hidden_size
        self.mtp[0].main_proj = Linear(
            len(config.dspark_target_layer_ids) * hidden,
            hidden,
            "fp8",
            dtype=dtype,
            rounds_input=quantization == "full",
            std=config.initializer_range,
        )
        self.mtp[0].main_norm = RMSNorm(hidden, config.rms_norm_eps)
        self.mtp[-1].norm = RMSNorm(hidden, config.rms_norm_eps)
        self.mtp[-1].markov_head = MarkovHead(config)
        self.mtp[-1].confidence_head = ConfidenceHead(config)

    @property
    def rounding(self) -> RoundTrip | None:
        """The format of window rows, or None where nothing is rounded."""
        return None if self.quantization == "none" else WINDOW_KV

    def new_cache(self, model: Model, max_tokens: int, batch: int = 1, **options) -> Cache:
        """As :meth:`Model.new_cache`, with windows for the draft layers, which the model's steps then fill.

        Raises:
            ValueError: the drafter is that of another model.
        """
        if model.config != self.config or model.quantization != self.quantization:
            raise ValueError("the drafter has another configuration or quantization than the model")
        cache = model.new_cache(max_tokens, batch, draft_layers=len(self.mtp), **options)
        cache.follower = self.follow
        return cache

    def main(self, entering: Sequence[torch.Tensor]) -> torch.Tensor:
        """What the target tells: means of the streams entering each target layer, [N, hidden] each -> [N, hidden]."""
        return self.mtp[0].main_norm(self.mtp[0].main_proj(torch.cat(tuple(entering), -1)))

    def context_rows(self, main: torch.Tensor, step: Step) -> list[torch.Tensor]:
        """Window rows of the target's tokens, ``main`` [N, hidden], one tensor [N, head_dim] for each draft layer, not
        yet rounded.
        """
        turn = step.turn(layer_frequencies(self.config, 0))
        return [block.attn.window(main, turn) for block in self.mtp]

    @torch.no_grad()
    def follow(self, hidden: Hidden, cache: Cache) -> None:
        """Write the context rows of a step of the target; what a cache's ``follower`` is called for."""
        step = hidden.step
        rows = self.context_rows(self.main(hidden.entering), step)
        for block, row in zip(self.mtp, rows, strict=True):
            cache.write_window(block.plan.index, step.sequence, step.position, row)

    @torch.no_grad()
    def draft(
        self, model: Model, cache: Cache, tokens: Sequence[int], rows: Sequence[int] = (0,), pick: Pick | None = None
    ) -> Drafts:
        """Guess what follows ``tokens``, which were drawn after all that ``rows`` of the cache hold.

        Args:
            tokens: for each sequence the token that was drawn last, not yet fed. rows: which sequences these are.
            pick: draws the tokens of one place; None takes the likeliest.

        Raises:
            ValueError: rows and tokens do not match, or a sequence is empty. CacheError: the cache has no windows for
                draft layers.
        """
        if cache.draft_layers != len(self.mtp):
            raise CacheError(
                f"the cache has windows for {cache.draft_layers} draft layers, the drafter {len(self.mtp)} layers; "
                "make the cache with Drafter.new_cache()"
            )
        for row in rows:
            if not 0 <= row < cache.batch:
                raise ValueError(f"row {row} is asked for; the cache has rows 0 to {cache.batch - 1}")
        outside = [token for token in tokens if not 0 <= token < self.config.vocab_size]
        if outside or not tokens:
            most = self.config.vocab_size - 1
            raise ValueError(f"tokens are {list(tokens)}; expected ids from 0 to {most}, one or more")
        firsts = [cache.lengths[row] for row in rows]
        if len(tokens) != len(firsts) or not all(firsts):
            raise ValueError(
                f"{len(tokens)} tokens for sequences of lengths {firsts}; expected one each, no sequence empty"
            )
        first = torch.tensor(tokens, device=model.device)
        return self.guess(model, first, *self._block(cache, list(rows), firsts), pick)

    def guess(self, model: Model, first: torch.Tensor, step: Step, memory: Memory, pick: Pick | None = None) -> Drafts:
        """Run blocks that begin with the tokens ``first``, int64 [R], and correct their guesses one after the other."""
        output, logits = self.outputs(model, first, step, memory)
        before, picked, corrected, confidence = first, [], [], []
        last = self.mtp[-1]
        for place in range(self.config.dspark_block_size):
            markov = last.markov_head.embed(before)
            corrected.append(logits[:, place] + last.markov_head.head(markov))
            confidence.append(last.confidence_head(output[:, place], markov))
            before = corrected[-1].argmax(-1) if pick is None else pick(corrected[-1])
            picked.append(before)
        return Drafts(torch.stack(picked, 1), torch.stack(corrected, 1), torch.stack(confidence, 1))

    def outputs(
        self, model: Model, first: torch.Tensor, step: Step, memory: Memory
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs of blocks that begin with the tokens ``first`` int64 [R]: [R, k, hidden] before the norm, and their
        logits without correction, [R, k, vocab].
        """
        size = self.config.dspark_block_size
        ids = torch.full((len(first), size), self.config.dspark_noise_token_id, device=first.device)
        ids[:, 0] = first
        streams = repeat_to_streams(model.embed(ids.flatten()), self.config.hc_mult)
        hidden = Hidden(streams, first_weights(step.tokens, self.config.hc_mult, first.device), step, {})
        for block in self.mtp:
            hidden = block(hidden, memory, {})
        output = collapse(hidden.streams, hidden.weights)
        logits = model.head(self.mtp[-1].norm(output))
        return output.unflatten(0, (-1, size)), logits.unflatten(0, (-1, size))

    def _block(self, cache: Cache, rows: list[int], firsts: list[int]) -> tuple[Step, Memory]:
        size, reach, device = self.config.dspark_block_size, self.config.sliding_window, cache.device
        step = Step.of([size] * len(rows), firsts, device)
        position = torch.tensor(firsts, device=device)[:, None] + torch.arange(-reach, 0, device=device)
        sequence = torch.tensor(rows, device=device).repeat_interleave(reach)
        start = cache.window_start[self.mtp[0].plan.index, rows].to(device)
        usable = position >= start[:, None]
        seen = torch.arange(position.numel(), device=device).view_as(position).where(usable, -1)
        choice, wanted = block_choice(seen, size), position.where(usable, -1).flatten()
        if KernelMemory.suits(cache):
            return step, KernelBlockMemory(cache, sequence, wanted, choice)
        return step, BlockMemory(lambda layer: cache.read_window(layer, sequence, wanted), choice, self.rounding)


def _check(config: ModelConfig) -> None:
    for name in (
        "num_nextn_predict_layers", "dspark_block_size", "dspark_markov_rank", "dspark_n_routed_experts",
        "dspark_num_experts_per_tok",
    ):  # fmt: skip
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} is {getattr(config, name)}; a drafter needs 1 or more")
    if not config.dspark_target_layer_ids:
        raise ConfigError("dspark_target_layer_ids is empty; a drafter needs the layers that it draws from")
    if not 0 <= config.dspark_noise_token_id < config.vocab_size:
        raise ConfigError(
            f"dspark_noise_token_id is {config.dspark_noise_token_id}; expected 0 to {config.vocab_size - 1}"
        )
