"""Exercises of chapter 07, hyper-connections."""

from __future__ import annotations

import math

import torch

from ds41.config import ModelConfig
from ds41.exercises import close, exercise, no_number, number
from ds41.hyper_connections import Coefficients, expand
from ds41.language import say
from ds41.mhc_traffic import SEPARATE, SINGLE_PASS, TWO_PASSES, Implementation, sites
from ds41.weights import hyper_connections


@exercise(
    "07.1",
    level="easy",
    minutes=4,
    hints=(
        "The prediction at the chapter's beginning has the traffic of each implementation as a formula in n.",
        "In the figure on why there are four streams the dotted line is the budget. Extend the line of one pass until "
        "it gets there.",
    ),
)
def streams_for_the_same_traffic(answer: object) -> str | None:
    """Streams that one pass can carry for the traffic of four in separate kernels."""
    if remark := no_number(answer):
        return remark
    n = ModelConfig.flash().hc_mult
    budget = SEPARATE.reads(n) + SEPARATE.writes(n)

    def affordable(implementation: Implementation) -> int:
        return max(k for k in range(1, 4 * n) if implementation.reads(k) + implementation.writes(k) <= budget)

    if close(answer, affordable(SINGLE_PASS), 0):
        return None
    if close(answer, affordable(TWO_PASSES), 0):
        return "So many for a kernel that reads the streams twice; one pass reads them once."
    if close(answer, 2 * n, 0):
        return "Nearly: the traffic has a part that does not grow with the streams."
    if close(answer, budget / 2, 0):
        return "One pass moves an output and an input besides the streams. Take them off before you solve for n."
    if close(answer, budget, 0):
        return "That is the budget, in vectors a site. How many streams does one pass carry for it?"
    return "Set the vectors of the separate kernels at n = 4 equal to 2n + 2, and solve for n."


@exercise(
    "07.2",
    level="medium",
    minutes=7,
    hints=(
        "The section on parameters counts those of all sites; SINGLE_PASS.nbytes(config) are the bytes that one token "
        "moves through all sites.",
        "Compare bytes with bytes: a float32 value has four. The parameters are read once whatever the number of "
        "tokens, the activations are moved for each token.",
    ),
)
def tokens_that_outweigh_the_parameters(answer: object) -> str | None:
    """Smallest whole number of tokens whose one-pass traffic exceeds the coefficients' parameters."""
    if remark := no_number(answer):
        return remark
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
    if close(answer, tokens(parameters) - 1, 0):
        return "There the parameters still have more bytes than the traffic."
    if close(answer, tokens(parameters * SINGLE_PASS.nbytes(config) / TWO_PASSES.nbytes(config)), 0):
        return "That is the traffic of two passes. One pass reads the streams once."
    if close(answer, tokens(2 * parameters), 0):
        return "An activation has two bytes, not one."
    if close(answer, tokens(parameters * sites(config)), 0):
        return "That is the traffic of one site. A token passes all of them."
    return "Bytes of all parameters, divided by the bytes that one token moves through 80 sites."


@exercise(
    "07.3",
    level="medium",
    minutes=5,
    hints=(
        "The section on the transposition trap says why no 2 by 2 matrix will do.",
        "Try matrices of zeros and ones only: each sends every stream to a place of its own. The transpose sends it "
        "back. Which way of moving three streams is not its own way back?",
    ),
)
def a_matrix_that_shows_a_transposition(answer: object) -> str | None:
    """A doubly stochastic 3 by 3 matrix that is not symmetric."""
    try:
        given = torch.as_tensor(answer).detach().cpu().to_dense()
        usable = given.shape == (3, 3) and not given.is_complex() and bool(given.isfinite().all())
    except (TypeError, ValueError, OverflowError, RuntimeError):
        usable = False
    if not usable:
        return "Give three rows of three numbers: [[..., ..., ...], [...], [...]]."
    matrix = given.double()
    if (matrix < 0).any():
        return "An entry is negative: then a new stream is no average of the old ones."
    column, row = (sums[(sums - 1).abs().argmax()].item() for sums in (matrix.sum(0), matrix.sum(1)))
    if abs(column - 1) > 1e-6:
        return say("A column sums to {total:g}, not to one.", total=column)
    if abs(row - 1) > 1e-6:
        return say("A row sums to {total:g}, not to one.", total=row)
    if (matrix - matrix.T).abs().max() < 1e-6:
        return "This one equals its transpose, so it would hide the mistake."
    return None


@exercise(
    "07.4",
    level="medium",
    minutes=7,
    hints=(
        "The formula stands in the section on streams in, streams out. Mind over which index of comb the sum runs.",
        "The sum over the old streams is one matrix product: see which index of comb has to stand beside that of the "
        "old streams. The other term is an outer product.",
    ),
)
def update_of_one_token(answer: object) -> str | None:
    """A function of streams [n, d], y [d], post [n] and comb [n, n] that returns the new streams."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    generator = torch.Generator().manual_seed(7)
    streams, y, post = (torch.rand(shape, generator=generator) for shape in ((4, 6), (6,), (4,)))
    comb = torch.rand(4, 4, generator=generator).softmax(0)

    def updated(post: torch.Tensor, comb: torch.Tensor) -> torch.Tensor:
        return expand(streams[None], y[None], Coefficients(post[None], post[None], comb[None]))[0]

    try:
        given = answer(streams.clone(), y.clone(), post.clone(), comb.clone())
    except Exception as error:
        return say("For streams [4, 6] it raises an error: {error!r}", error=error)
    try:
        found = torch.as_tensor(given).detach().cpu().to_dense()
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return say(
            "For streams [4, 6] it returns an object of the type {kind}; give one tensor of the same shape.",
            kind=type(given).__name__,
        )
    if found.shape != streams.shape:
        return say(
            "For streams [4, 6] it returns {shape}; the new streams have the same shape.", shape=list(found.shape)
        )
    if found.is_complex() or not found.isfinite().all():
        return "Not all of the values that it returns are finite real numbers."

    def equals(expected: torch.Tensor) -> bool:
        return torch.allclose(found.float(), expected, atol=1e-5)

    if equals(updated(post, comb)):
        return None
    if equals(updated(post, comb.T)):
        return "This contracts over the wrong index: new stream k takes column k of comb."
    if equals(updated(torch.ones(4), comb)):
        return "The output enters each stream with its own weight, post."
    if equals(updated(torch.zeros(4), comb)):
        return "The streams are mixed; the sublayer's output is missing."
    if equals(streams + post[:, None] * y):
        return (
            "Here each stream keeps its old values. New stream k is post[k] times y, plus the sum over j of comb[j, k] "
            "times old stream j."
        )
    return "New stream k is post[k] times y, plus the sum over j of comb[j, k] times old stream j."


@exercise(
    "07.5",
    level="easy",
    minutes=4,
    hints=(
        "The inequality stands in the section on what the constraint buys. How large can post become?",
        "Apply it once for each site. Before the first site every stream is a copy of the embedding.",
    ),
)
def bound_on_a_stream(answer: object) -> str | None:
    """Largest length that a stream can reach if embedding and outputs have length one."""
    if remark := no_number(answer):
        return remark
    through = sites(ModelConfig.flash())
    if close(answer, 1 + 2 * through, 0):
        return None
    if close(answer, 1 + through, 0):
        return "An output is written with a weight of up to two, at 80 sites: one of the two factors is missing."
    if close(answer, 2 * through, 0):
        return "The embedding was there before the first site."
    if number(answer) > 1000:
        return "Mixing never lengthens a stream, so nothing multiplies: lengths only add."
    return "Start with the embedding's length and add what each site can add at most."
