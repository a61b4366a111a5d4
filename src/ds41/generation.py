"""Text from a model, token by token: prefill once, then one decode step for each token that is drawn.

Source: ds41's own loop; report section 3.2.2 for the bounded decoder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain

import torch
from tokenizers import Tokenizer

from ds41.cache import Cache
from ds41.decoder_tail import Decoder, check_decoder
from ds41.dspark.decoding import Drafting, Draw, speculate
from ds41.model import Model
from ds41.sampling import check_sampling, sample
from ds41.tokenizer import REPLACEMENT_CHARACTER

# A character has up to four bytes; so long as three may be all there is of one, it is not shown.
_LONGEST_OPEN = 3
# Tokens before the newest that are decoded with it: a decoder may treat the first token of a text differently.
_CONTEXT = 8


def generate(
    model: Model,
    prompt_ids: torch.Tensor | Sequence[int],
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop_ids: Collection[int] | None = None,
    decoder: Decoder = "full",
    drafting: Drafting | None = None,
    image_vectors: torch.Tensor | None = None,
) -> Iterator[int]:
    """Continue a prompt; each id is given out as soon as it is drawn.

    Args:
        prompt_ids: one sequence, [T].
        temperature: divides the logits; 0 always takes the largest, the lowest id among equals.
        top_p: draw only from the smallest set of most likely tokens whose probabilities sum to this or more.
        seed: of this sequence's own random numbers; None for another sequence each time.
        stop_ids: ids that end the sequence and are not given out; None for the configuration's ``eos_token_id``.
        decoder: how the prompt is run, as in :meth:`ds41.model.Model.prefill`.
        drafting: how tokens are drafted; None draws one by one. The tokens follow the same distribution, and at
            temperature 0 they are the same, but where the largest logits are equal up to rounding.
        image_vectors: [I, hidden], for the prompt's positions with ``image_token_id`` (:mod:`ds41.vision`).

    Raises:
        ValueError: now, not at the first id: a value is out of its range, or prompt and new tokens together are more
            than the model's positions. FloatingPointError: while drawing: the logits are not finite.
    """
    check_sampling(temperature, top_p, seed)
    check_decoder(decoder)
    prompt = _checked_prompt(model, prompt_ids, max_new_tokens)
    stops = {model.config.eos_token_id} if stop_ids is None else set(stop_ids)
    random = torch.Generator()
    if seed is None:
        random.seed()
    else:
        random.manual_seed(seed)

    def draw_all() -> Iterator[int]:
        if max_new_tokens == 0:
            return
        chosen = Draw(temperature, top_p, random)
        tokens = len(prompt) + max_new_tokens
        cache = model.new_cache(tokens) if drafting is None else drafting.drafter.new_cache(model, tokens)
        logits = model.prefill(prompt[None], cache, decoder=decoder, image_vectors=image_vectors)[0]
        first = sample(logits, temperature, top_p, random)
        if drafting is not None:
            later = chain.from_iterable(speculate(model, drafting, cache, first, chosen, max_new_tokens - 1))
        else:
            later = _one_by_one(model, cache, first, chosen, max_new_tokens - 1)
        for token in chain((first,), later):
            if token in stops:
                return
            yield token

    return draw_all()


def _one_by_one(model: Model, cache: Cache, token: int, chosen: Draw, most: int) -> Iterator[int]:
    for _ in range(most):
        logits = model.decode(torch.tensor([token]), cache)[0, -1]
        token = sample(logits, chosen.temperature, chosen.top_p, chosen.random)
        yield token


def stream_text(ids: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """Decode ids as they come, in pieces of whole characters; joined they are the text of all ids."""
    characters = Characters(tokenizer)
    for token in ids:
        piece = characters.feed(token)
        if piece:
            yield piece
    rest = characters.finish()
    if rest:
        yield rest


class Characters:
    """Ids in, whole characters out. What may yet become a character waits until it is one, or cannot become one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._shown = 0
        self._text = ""

    def feed(self, token: int) -> str:
        """What has become certain with one more id, perhaps nothing."""
        self._window.append(token)
        text = self._decoded()
        closed = len(text) - _open_characters(text)
        piece = text[self._shown : closed]
        self._shown = max(self._shown, closed)
        if closed == len(text) and len(self._window) > 2 * _CONTEXT:
            self._window = self._window[-_CONTEXT:]
            text = self._decoded()
            self._shown = len(text)
        self._text = text
        return piece

    def finish(self) -> str:
        """What was waiting, once no more ids come."""
        rest, self._shown = self._text[self._shown :], len(self._text)
        return rest

    def _decoded(self) -> str:
        return self._tokenizer.decode(self._window, skip_special_tokens=False)


def _open_characters(text: str) -> int:
    """How many replacement characters at the end may stand for a character whose last bytes are still to come."""
    tail = text[-_LONGEST_OPEN:]
    return len(tail) - len(tail.rstrip(REPLACEMENT_CHARACTER))


def _checked_prompt(model: Model, prompt_ids: torch.Tensor | Sequence[int], max_new_tokens: int) -> torch.Tensor:
    try:
        ids = torch.as_tensor(prompt_ids)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(f"prompt_ids are no sequence of token ids: {error}") from error
    if ids.dim() != 1:
        raise ValueError(f"prompt_ids have shape {list(ids.shape)}; expected one sequence, [T]")
    if not len(ids):
        raise ValueError("the prompt is empty; expected one token or more")
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"prompt_ids are {ids.dtype}; expected integers")
    # A byte would compare with the vocabulary's size modulo 256.
    ids = ids.to(torch.int64)
    outside = (ids < 0) | (ids >= model.config.vocab_size)
    if bool(outside.any()):
        place = int(outside.nonzero()[0])
        raise ValueError(
            f"prompt_ids[{place}] is {int(ids[place])}; expected ids from 0 to {model.config.vocab_size - 1}"
        )
    if max_new_tokens < 0:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; expected 0 or more")
    positions = model.config.max_position_embeddings
    if len(ids) + max_new_tokens > positions:
        raise ValueError(
            f"a prompt of {len(ids):,} tokens and max_new_tokens {max_new_tokens:,} are more than the model's "
            f"{positions:,} positions"
        )
    return ids
