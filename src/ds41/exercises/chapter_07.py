"""Exercises of chapter 07, hyper-connections."""

from __future__ import annotations

import math
from numbers import Real

import torch

from ds41.config import ModelConfig
from ds41.exercises import close, exercise
from ds41.hyper_connections import Coefficients, expand
from ds41.mhc_traffic import SEPARATE, SINGLE_PASS, TWO_PASSES, Implementation, sites
from ds41.weights import hyper_connections


@exercise("07.1")
def streams_for_the_same_traffic(answer: object) -> str | None:
    """Streams that one pass can carry for the traffic of four in separate kernels."""
    n = ModelConfig.flash().hc_mult

    def affordable(implementation: Implementation) -> int:
        budget = SEPARATE.reads(n) + SEPARATE.writes(n)
        return max(k for k in range(1, 4 * n) if implementation.reads(k) + implementation.writes(k) <= budget)

    if close(answer, affordable(SINGLE_PASS), 0):
        return None
    if close(answer, affordable(TWO_PASSES), 0):
        return "So many for a kernel that reads the streams twice; one pass reads them once."
    if close(answer, 2 * n, 0):
        return "Nearly: the traffic has a part that does not grow with the streams."
    return "Set the vectors of the separate kernels at n = 4 equal to 2n + 2, and solve for n."


@exercise("07.2")
def tokens_that_outweigh_the_parameters(answer: object) -> str | None:
    """Smallest whole number of tokens whose one-pass traffic exceeds the coefficients' parameters."""
    config = ModelConfig.flash()
    # The ledger of the weights counts each layer's two norms with them, in BF16.
    norms = 2 * 2 * config.hidden_size
    parameters = config.num_hidden_layers * (hyper_connections(config).nbytes - norms)

    def tokens(nbytes: float) -> int:
        return math.floor(nbytes / SINGLE_PASS.nbytes(config)) + 1

    if close(answer, tokens(parameters), 0):
        return None
    if close(answer, tokens(parameters / 2), 0):
        return "That is with two bytes a parameter; these are stored in float32."
    if close(answer, tokens(parameters / config.num_hidden_layers), 0):
        return "Parameters of all layers against activations of all sites."
    if close(answer, parameters / SINGLE_PASS.nbytes(config), 0.01):
        return "Give the first whole number of tokens beyond the crossing."
    return "Bytes of all parameters, divided by the bytes that one token moves through 80 sites."


@exercise("07.3")
def a_matrix_that_shows_a_transposition(answer: object) -> str | None:
    """A doubly stochastic 3 by 3 matrix that is not symmetric."""
    try:
        matrix = torch.as_tensor(answer, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return "Give three rows of three numbers: [[..., ..., ...], [...], [...]]."
    if matrix.shape != (3, 3) or not matrix.isfinite().all():
        return "Give three rows of three numbers: [[..., ..., ...], [...], [...]]."
    if (matrix < 0).any():
        return "An entry is negative: then a new stream is no average of the old ones."
    for axis, name in ((0, "column"), (1, "row")):
        sums = matrix.sum(axis)
        if (sums - 1).abs().max() > 1e-6:
            return f"A {name} sums to {sums[(sums - 1).abs().argmax()].item():g}, not to one."
    if (matrix - matrix.T).abs().max() < 1e-6:
        return "This one equals its transpose, so it would hide the mistake."
    return None


@exercise("07.4")
def update_of_one_token(answer: object) -> str | None:
    """A function of streams [n, d], y [d], post [n] and comb [n, n] that returns the new streams."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    generator = torch.Generator().manual_seed(7)
    streams, y, post = (torch.rand(shape, generator=generator) for shape in ((4, 6), (6,), (4,)))
    comb = torch.rand(4, 4, generator=generator).softmax(0)

    def updated(post: torch.Tensor, comb: torch.Tensor) -> torch.Tensor:
        return expand(streams[None], y[None], Coefficients(post[None], post[None], comb[None]))[0]

    found = answer(streams.clone(), y.clone(), post.clone(), comb.clone())
    if not isinstance(found, torch.Tensor) or found.shape != streams.shape:
        shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        return f"For streams [4, 6] it returns {shape}; the new streams have the same shape."

    def equals(expected: torch.Tensor) -> bool:
        return torch.allclose(found.to(expected.dtype), expected, atol=1e-5)

    if equals(updated(post, comb)):
        return None
    if equals(updated(post, comb.T)):
        return "This contracts over the wrong index: new stream k takes column k of comb."
    if equals(updated(torch.ones(4), comb)):
        return "The output enters each stream with its own weight, post."
    if equals(updated(torch.zeros(4), comb)):
        return "The streams are mixed; the sublayer's output is missing."
    return "New stream k is post[k] times y, plus the sum over j of comb[j, k] times old stream j."


@exercise("07.5")
def bound_on_a_stream(answer: object) -> str | None:
    """Largest length that a stream can reach if embedding and outputs have length one."""
    through = sites(ModelConfig.flash())
    if close(answer, 1 + 2 * through, 0):
        return None
    if close(answer, 1 + through, 0):
        return "An output is written with a weight of up to two."
    if close(answer, 2 * through, 0):
        return "The embedding was there before the first site."
    if isinstance(answer, Real) and not isinstance(answer, bool) and answer > 1000:
        return "Mixing never lengthens a stream, so nothing multiplies: lengths only add."
    return "Start with the embedding's length and add what each site can add at most."
