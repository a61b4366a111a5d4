"""Engines on the tiny model, and what an answer should be."""

import tiny_model
import torch

from ds41.serving import Engine

CONFIG = tiny_model.CONFIG
WINDOW = CONFIG.sliding_window
PAGE = 16
FINGERPRINT = b"tiny"


def engine_of(model, store=None, pool=None, **options):
    settings = {"max_tokens": 200, "rows": 3, "fingerprint": FINGERPRINT} | options
    return Engine(model, store, pool, **settings)


def some_ids(count, seed=0):
    return torch.randint(3, CONFIG.vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def answer(session, ids, tokens=5, **options):
    stream = session.say(ids, tokens, stop_ids=(), **options)
    return list(stream), stream.report


def alone(model, ids, tokens, decoder="bounded"):
    """The greedy answer of a model without any tier."""
    cache = model.new_cache(200)
    logits, drawn = model.prefill(torch.tensor(ids), cache, decoder=decoder)[0], []
    for _ in range(tokens):
        drawn.append(int(logits.argmax()))
        logits = model.decode(drawn[-1], cache)[0, -1]
    return drawn
