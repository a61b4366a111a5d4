"""The text model: embedding, layers, head; whole sequences, prefill and decode.

Source: report section 2; released ``Transformer``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral

import numpy as np
import torch
from torch import nn

from ds41.attention import CacheMemory, KernelMemory, Memory, Selection, SequenceMemory
from ds41.block import Block, Hidden
from ds41.cache import Cache
from ds41.cache.storage import check_storage
from ds41.config import ModelConfig
from ds41.decoder_tail import Decoder, Tails, begin_tail, check_decoder, tail_starts
from ds41.engram import Hasher, look_back, new_history
from ds41.engram.prefetch import PendingRows, PrefetchingTable
from ds41.hyper_connections import first_weights, repeat_to_streams
from ds41.linear import Linear, Quantization, check_quantization
from ds41.norm import RMSNorm
from ds41.step import Step
from ds41.tokenizer import byte_tokenizer, compression_map
from ds41.tokens import Tokens, token_rows

# Activations of a prefill exist for this many tokens of a sequence at a time.
_CHUNK = 1024


class Model(nn.Module):
    """DeepSeek-V4.1's text model for any configuration of the family.

    Args:
        quantization: "none" rounds nowhere; "cache" rounds what the three caches hold, as the trained model does;
            "full" also rounds the inputs of FP8 and FP4 matrices.
        dtype: type of weights and activations. Hyper-connections, router, sinks, pooling and the head compute in
            float32 whatever it is, so cast a model by building it with another ``dtype``, not with ``.to()``.
        token_map: int64 [vocab_size], the compressed id of every token, which Engram hashes
            (:func:`ds41.tokenizer.compression_map`). None takes the byte vocabulary's where it fits.

    Raises:
        ValueError: ``quantization`` is unknown, or a token map is given to a model without Engram.
    """

    def __init__(
        self,
        config: ModelConfig,
        quantization: Quantization = "cache",
        dtype: torch.dtype = torch.float32,
        token_map: torch.Tensor | np.ndarray | None = None,
    ) -> None:
        super().__init__()
        check_quantization(quantization)
        self.config, self.quantization, self.dtype = config, quantization, dtype
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        nn.init.normal_(self.embed.weight, 0, config.initializer_range)
        self.layers = nn.ModuleList(Block(config, plan, quantization, dtype) for plan in config.layers)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = Linear(
            config.hidden_size, config.vocab_size, "bf16", dtype=torch.float32, std=config.initializer_range
        )
        self.hasher = None
        if token_map is not None and not config.engram_layer_ids:
            raise ValueError("a token map is given, but engram_layer_ids is empty: nothing would use it")
        if config.engram_layer_ids:
            self.hasher = Hasher(config, _byte_map(config) if token_map is None else token_map)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embed.weight.device

    def forward(
        self,
        input_ids: torch.Tensor,
        image_mask: torch.Tensor | None = None,
        image_vectors: torch.Tensor | None = None,
        memory: Callable[[Step], Memory] | None = None,
    ) -> torch.Tensor:
        """Logits of every position of whole sequences, differentiable: [B, T] -> float32 [B, T, vocab].

        Args:
            input_ids: int64 [B, T], each row from position 0. A shorter sequence may be padded on the right.
            image_mask: bool [B, T], the positions that belong to images.
            image_vectors: [I, hidden], what stands at those positions in place of embeddings, row after row; None
                leaves the embeddings of their ids there.
            memory: makes the memory of this pass; None for a :class:`SequenceMemory` that rounds as the model does.
                Another one shows what was written, or changes what is seen.

        Raises:
            ValueError, TypeError: ids as in :meth:`prefill`; rows of unequal length; more tokens than the model has
                positions; weights that were cast to another type.
        """
        hidden = self.run_sequences(input_ids, image_mask, image_vectors, memory)
        return self.logits(hidden).unflatten(0, (len(hidden.step.counts), -1))

    def run_sequences(
        self,
        input_ids: torch.Tensor,
        image_mask: torch.Tensor | None = None,
        image_vectors: torch.Tensor | None = None,
        memory: Callable[[Step], Memory] | None = None,
        watched: Sequence[int] = (),
    ) -> Hidden:
        """What :meth:`forward` gives before the head, and what entered the ``watched`` layers, for a drafter.

        Args:
            input_ids, image_mask, image_vectors, memory: as in :meth:`forward`. watched: indices of layers.

        Raises:
            ValueError: ids outside the vocabulary, rows of unequal length, or more tokens than the model has positions.
            TypeError: the model was cast to another type than it was built in.
        """
        tokens = token_rows(input_ids, None, self.config, self.device, image_mask, image_vectors)
        if len(set(tokens.counts)) > 1:
            raise ValueError(f"the rows have {list(tokens.counts)} tokens; expected equal lengths, or pad on the right")
        if tokens.counts[0] > self.config.max_position_embeddings:
            raise ValueError(
                f"there are {tokens.counts[0]} tokens; the model has max_position_embeddings "
                f"{self.config.max_position_embeddings}"
            )
        if self.embed.weight.dtype != self.dtype:
            raise TypeError(
                f"the model was built in {self.dtype} and cast to {self.embed.weight.dtype}; build it with that dtype"
            )
        step = tokens.step([0] * len(tokens.rows))
        made = SequenceMemory(self.config, step, self.quantization != "none") if memory is None else memory(step)
        history = new_history(len(tokens.rows), self.config.engram_max_ngram_size, self.device)
        hidden = replace(self._enter(tokens, step, history)[0], watched=tuple(watched))
        return self._run(hidden, made)

    def logits(self, hidden: Hidden, tokens: torch.Tensor | slice = slice(None)) -> torch.Tensor:
        """Of all tokens of a pass or some, float32 [n, vocab]."""
        return self.head(hidden.out_of(tokens, self.norm))

    def new_cache(self, max_tokens: int, batch: int = 1, **options) -> Cache:
        """An empty cache for ``batch`` sequences of up to ``max_tokens`` tokens; options as in :class:`Cache`.

        Packed pages by default; ``storage="fake"`` keeps the rounded values in the model's dtype. A model without
        rounding keeps plain values.

        Raises:
            ValueError: a storage that is none, or that does not belong to the model's quantization. CacheError: as
                :class:`Cache`.
        """
        options.setdefault("storage", "plain" if self.quantization == "none" else "packed")
        check_storage(options["storage"], self.dtype)
        if (options["storage"] == "plain") != (self.quantization == "none"):
            raise ValueError(
                f"storage is {options['storage']!r} and the model's quantization {self.quantization!r}; 'plain' "
                "storage belongs to quantization 'none', 'packed' and 'fake' to the others"
            )
        return Cache(self.config, max_tokens, batch, **({"dtype": self.dtype, "device": self.device} | options))

    @torch.no_grad()
    def prefill(
        self,
        input_ids: torch.Tensor | Sequence[torch.Tensor] | Sequence[Sequence[int]],
        cache: Cache,
        decoder: Decoder = "full",
        image_mask: torch.Tensor | Sequence[torch.Tensor] | None = None,
        chunk_tokens: int = _CHUNK,
        image_vectors: torch.Tensor | Sequence[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Append a prompt, or the next part of one, to every sequence of a cache.

        Args:
            input_ids: [T] for a cache of one sequence, [B, T], or one row for each sequence, of any lengths (an
                empty one adds nothing).
            decoder: "full" runs every layer on every token. "bounded" runs the last source's attention and the
                layers above it on the last ``sliding_window`` of this call's tokens only; their windows begin there,
                and a call with fewer tokens continues those of the calls before (report section 3.2.2). So a prompt
                in several calls gives other logits than in one. "exact" runs each of those layers on the tokens that
                the windows above it follow from, and gives what "full" gives up to rounding. All global entries are
                written in any case.
            image_mask: bool [T], [B, T] or rows, like ``input_ids``: the positions that belong to images; None where
                vectors are given takes those with ``image_token_id``. image_vectors: what stands there in place of
                embeddings (:class:`ds41.vision.Vision`): [I, hidden] for all sequences, or one tensor for each.
            chunk_tokens: how many tokens of each sequence go through the layers at a time; any number gives the
                same result up to rounding.

        Returns:
            Logits of each sequence's last new token, float32 [B, vocab]; NaN for a sequence without new tokens.

        Raises:
            ValueError: ids outside the vocabulary, or rows that do not fit the cache. CacheError: no room; nothing
                is written then.
            TypeError: ``cache`` is no :class:`ds41.cache.Cache`, or an id no whole number.
        """
        check_decoder(decoder)
        if chunk_tokens < 1:
            raise ValueError(f"chunk_tokens is {chunk_tokens}; expected 1 or more")
        self._check_cache(cache)
        tokens = token_rows(input_ids, cache.batch, self.config, self.device, image_mask, image_vectors)
        cache.reserve(tokens.counts)
        logits = torch.full((cache.batch, self.config.vocab_size), torch.nan, device=self.device)
        remaining, before = list(tokens.counts), cache.window_start.clone()
        tails = Tails(cache.batch)
        for row, (length, count) in enumerate(zip(cache.lengths, tokens.counts, strict=True)):
            drafts = cache.follower is not None
            tails.set(row, tail_starts(self.config, length, length + count, decoder, drafts))
            begin_tail(cache, row, tails.rows[row])
        try:
            for chunk in tokens.chunks(chunk_tokens):
                hidden = self._append(chunk, cache, tails)
                remaining = [left - count for left, count in zip(remaining, chunk.counts, strict=True)]
                ended = [b for b, count in enumerate(chunk.counts) if count and not remaining[b]]
                if ended:
                    logits[ended] = self.logits(hidden, hidden.step.last_tokens()[ended])
        except BaseException:
            # Sequences that never got as far as their last window keep the windows that they had.
            unreached = cache.window_start > torch.tensor(cache.lengths)
            cache.window_start.copy_(torch.where(unreached, before, cache.window_start))
            raise
        return logits

    @torch.no_grad()
    def extend(
        self,
        rows: Sequence[torch.Tensor] | Sequence[Sequence[int]],
        cache: Cache,
        wanted: Sequence[int] | Mapping[int, int],
        tails: Tails | None = None,
        images: Sequence[torch.Tensor] | None = None,
        image_vectors: Sequence[torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """One step of a batch in which some sequences are prefilled piece by piece while others decode.

        Args:
            rows: new tokens of each sequence of the cache, of any lengths, perhaps none.
            wanted: the sequences whose last new token's logits are asked for, each with a token in this step; or for
                each of them how many of its last new tokens, one or more.
            tails: from where on the layers above the last source run (:mod:`ds41.decoder_tail`); None for all tokens.
            images, image_vectors: rows like ``rows``, as :meth:`prefill` takes them.

        Returns:
            Logits, float32 [number asked for, vocab], sequence after sequence in the order of ``wanted``.

        Raises:
            ValueError, TypeError, CacheError: as :meth:`prefill`; nothing is written then.
        """
        self._check_cache(cache)
        tokens = token_rows(rows, cache.batch, self.config, self.device, images, image_vectors)
        wanted = dict(wanted) if isinstance(wanted, Mapping) else dict.fromkeys(wanted, 1)
        for row, count in wanted.items():
            has = tokens.counts[row] if 0 <= row < cache.batch else 0
            if not 1 <= count <= has:
                raise ValueError(f"logits of {count} tokens of row {row} are wanted, which has {has} in this step")
            if tails is not None and count > (left := tails.outputs(row, cache.lengths[row], has)):
                raise ValueError(f"logits of {count} tokens of row {row} are wanted, of which {left} lie in its tail")
        cache.reserve(tokens.counts)
        hidden = self._append(tokens, cache, tails)
        if not wanted:
            return torch.empty(0, self.config.vocab_size, device=self.device)
        ends = hidden.step.offsets[1:]
        places = [place for row, count in wanted.items() for place in range(ends[row] - count, ends[row])]
        return self.logits(hidden, torch.tensor(places, device=self.device))

    @torch.no_grad()
    def decode(self, tokens: int | torch.Tensor | Sequence, cache: Cache) -> torch.Tensor | list[torch.Tensor]:
        """Append one token to every sequence, or several to be verified.

        Args:
            tokens: an int for a cache of one sequence, [B], [B, k], or one row for each sequence, of any lengths. A
                cache of one sequence also takes [k].

        Returns:
            Logits after each token, float32 [B, k, vocab]; for rows of unequal length a list of [k, vocab].

        Raises:
            ValueError: ids outside the vocabulary, or rows or a cache that do not fit.
            TypeError: ``cache`` is no :class:`ds41.cache.Cache`, or an id no whole number.
            CacheError: no room; nothing is written then.
        """
        self._check_cache(cache)
        if isinstance(tokens, Integral):
            tokens = torch.tensor([[int(tokens)]])
        elif isinstance(tokens, (list, tuple)) and tokens and all(isinstance(token, Integral) for token in tokens):
            tokens = torch.tensor([int(token) for token in tokens])
        if isinstance(tokens, torch.Tensor) and tuple(tokens.shape) == (cache.batch,):
            tokens = tokens[:, None]
        new = token_rows(tokens, cache.batch, self.config, self.device)
        cache.reserve(new.counts)
        logits = self.logits(self._append(new, cache), slice(None)).split(new.counts)
        return torch.stack(logits) if len(set(new.counts)) == 1 else list(logits)

    def _append(self, tokens: Tokens, cache: Cache, tails: Tails | None = None) -> Hidden:
        step = tokens.step(cache.lengths)
        hidden, compressed = self._enter(tokens, step, cache.history())
        if cache.follower is not None:
            hidden = replace(hidden, watched=self.config.dspark_target_layer_ids)
        memory = KernelMemory(cache) if KernelMemory.suits(cache) else CacheMemory(cache)
        hidden = self._run(hidden, memory, tails)
        if cache.follower is not None and hidden.step.tokens:
            cache.follower(hidden, cache)
        if compressed is not None:
            cache.write_history(step.sequence, step.position, compressed)
        cache.advance(tokens.counts)
        return hidden

    def _enter(self, tokens: Tokens, step: Step, history: torch.Tensor) -> tuple[Hidden, torch.Tensor | None]:
        """Streams before the first layer, and the compressed ids that Engram's next look-back needs."""
        streams = repeat_to_streams(tokens.embed(self.embed), self.config.hc_mult)
        weights = first_weights(step.tokens, self.config.hc_mult, self.device)
        if self.hasher is None:
            return Hidden(streams, weights, step, {}), None
        compressed = self.hasher.compress(tokens.ids, step.image, validate=False)
        windows = look_back(compressed, step.position, step.sequence, history, validate=False)
        rows = self.hasher.rows(windows, validate=False)
        return Hidden(streams, weights, step, rows, pending=self._prefetch(rows)), compressed

    def _prefetch(self, rows: dict[int, torch.Tensor]) -> tuple[PendingRows, ...]:
        """Rows follow from ids alone, so those of tables in host memory set out before the first layer runs."""
        tables = ((self.layers[layer].engram.embed, row_ids) for layer, row_ids in rows.items())
        return tuple(table.prefetch(row_ids) for table, row_ids in tables if isinstance(table, PrefetchingTable))

    def _run(self, hidden: Hidden, memory: Memory, tails: Tails | None = None) -> Hidden:
        selections: dict[int, Selection] = {}
        for layer, block in enumerate(self.layers):
            hidden = block(hidden, memory, selections, None if tails is None else tails.of(layer))
            if hidden.step.tokens == 0:
                break
        return hidden

    def _check_cache(self, cache: Cache) -> None:
        if not isinstance(cache, Cache):
            raise TypeError(f"cache is a {type(cache).__name__}; expected a Cache from model.new_cache()")
        if cache.config != self.config:
            raise ValueError("the cache was made for another configuration; make it with model.new_cache()")
        if (cache.storage == "plain") != (self.quantization == "none"):
            raise ValueError(
                f"the cache's storage is {cache.storage!r} and the model's quantization {self.quantization!r}; make "
                "the cache with model.new_cache()"
            )


def _byte_map(config: ModelConfig) -> torch.Tensor | None:
    """The byte vocabulary's token map where a configuration is made for it; None elsewhere."""
    tokenizer = byte_tokenizer()
    if config.vocab_size != tokenizer.get_vocab_size():
        return None
    with torch.device("cpu"):
        token_map = compression_map(tokenizer, config.vocab_size)
    return token_map if int(token_map.max()) + 1 == config.engram_compressed_vocab_size else None
