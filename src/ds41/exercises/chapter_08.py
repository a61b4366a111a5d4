"""Exercises of chapter 08, mixture of experts."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ds41 import weights
from ds41.config import ModelConfig
from ds41.exercises import close, exercise, no_number, number
from ds41.language import say
from ds41.linear import quantize_input
from ds41.moe import Router
from ds41.roofline import DEVICES

DEVICE = DEVICES["H200"]
ROUTING_WEIGHTS = (0.2, 0.25, 0.3, 0.375, 0.5, 1.0)
# Logits, biases and k: the bias matters, it does not, equal keys, every expert.
TOKENS = (
    ([0.0, 1.0, -1.0, 2.0, -3.0, 0.5], [0.0, 0.0, 0.9, 0.0, 0.9, 0.0], 3),
    ([3.0, -2.0, 0.25, 1.5], [0.0, 0.0, 0.0, 0.0], 2),
    ([1.0, 2.0, 1.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.0, 0.0], 4),
    ([-6.0, 4.0, 0.0], [1.0, -2.0, 0.5], 3),
)


@exercise(
    "08.1",
    level="easy",
    minutes=5,
    hints=(
        "The prediction of bytes from the batch has the experts read as a formula; even routing is its upper bound.",
        "Set that to half of the experts. The batch stands in an exponent, so a logarithm brings it down.",
    ),
)
def batch_that_reads_half(answer: object) -> str | None:
    """Batch at which even routing reads half of the experts: a real number, or the next whole one."""
    if remark := no_number(answer):
        return remark
    config = ModelConfig.flash()
    share = config.num_experts_per_tok / config.n_routed_experts
    expected = math.log(0.5) / math.log(1 - share)
    if close(answer, expected) or close(answer, math.ceil(expected), 0):
        return None
    if close(answer, 0.5 / share, 0):
        return "That is right only if no two tokens share an expert."
    if close(answer, -expected):
        return "A batch is positive: mind the signs of the logarithms."
    if close(answer, math.log(0.5) / math.log(share)):
        return "The chance that counts is that of being passed by: 1 - k/E, not k/E."
    if close(answer, math.log(0.5) / math.log(1 - 1 / config.n_routed_experts)):
        return "That is for one expert a token. A token picks k."
    return "An expert stays unread if every token of the batch passes it by: (1 - k/E)^B."


@exercise(
    "08.2",
    level="hard",
    minutes=15,
    hints=(
        "See the router, step by step: score, choose, weigh. The table of scores names the score function.",
        "Rank the experts by score and bias together, the largest first. Python's sort leaves equal ones in their "
        "order, which is the model's order, too.",
        "Forget the bias once the experts are chosen. The model has a factor by which the weights, made to sum to one, "
        "are multiplied; the section says which.",
    ),
)
def route_one_token(answer: object) -> str | None:
    """A function (logits, bias, k) -> (experts, weights) of one token."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for logits, bias, k in TOKENS:
        experts, expected = _routed(logits, bias, k)
        try:
            given = answer(list(logits), list(bias), k)
        except Exception as error:
            return say(
                "For logits {logits}, biases {biases} and k = {k} it raises an error: {error!r}",
                logits=logits,
                biases=bias,
                k=k,
                error=error,
            )
        try:
            parts = [_listed(part) for part in given]
            chosen, got = ([number(one) for one in part] for part in parts)
        except (TypeError, ValueError, RuntimeError):
            return "Return two lists, the experts and their weights."
        if chosen != experts:
            return say(
                "For logits {logits}, biases {biases} and k = {k} it chooses {chosen}. {why}",
                logits=logits,
                biases=bias,
                k=k,
                chosen=parts[0],
                why=_about_choice(chosen, experts, logits),
            )
        if len(got) != k or any(a is None or not close(a, b, 1e-5) for a, b in zip(got, expected, strict=True)):
            return say(
                "For logits {logits}, biases {biases} and k = {k} the choice is right and the weights are not. {why}",
                logits=logits,
                biases=bias,
                k=k,
                why=_about_weights(got, experts, logits, bias),
            )
    return None


@exercise(
    "08.3",
    level="easy",
    minutes=4,
    hints=(
        "The first prediction's table splits the parameters that a token runs through. Which of its rows changes?",
        "The library counts what a decoded token runs through today, without the head, in weights.active, and the "
        "parameters of one expert in weights.expert. Mind that every layer has experts.",
    ),
)
def active_with_eight(answer: object) -> str | None:
    """Active parameters in decode, without the head, if a token visited eight routed experts."""
    if remark := no_number(answer):
        return remark
    config = ModelConfig.flash()
    eight = replace(config, num_experts_per_tok=8)
    expected, expert = weights.active(eight).parameters, weights.expert(config).parameters
    if close(answer, expected, 1e-4):
        return None
    if close(answer, expected + weights.head(config).parameters, 1e-4):
        return "That counts the head, too."
    if close(answer, weights.active(config).parameters * 8 / 6, 1e-3):
        return "Only the routed experts become more; attention and the rest stay."
    if close(answer, weights.active(config).parameters + 2 * expert, 1e-4):
        return "Two more in each layer."
    if close(answer, expected + 6 * config.num_hidden_layers * expert, 1e-4):
        return "Eight in place of six, not eight besides them."
    if any(close(answer, weights.active(eight, half).parameters, 1e-4) for half in ("encoder", "decoder")):
        return "That is one half of the model. In decode a token runs through both."
    if close(answer, expected / 1e9):
        return "Give the number of parameters, not billions of them."
    if close(answer, weights.active(eight).nbytes, 1e-4):
        return "Those are bytes. The question is about parameters."
    return "Start from weights.active(config) and add two experts in every layer."


@exercise(
    "08.4",
    level="medium",
    minutes=10,
    hints=(
        "Reading an expert takes its bytes over the bandwidth, however many tokens come. weights.expert(config) has "
        "both its bytes and its parameters.",
        "First find how many tokens one expert needs until computing takes as long. Then think how many tokens "
        "of a batch reach an expert on average, with even routing.",
    ),
)
def batch_that_computes(answer: object) -> str | None:
    """Batch from which on an H200 computes with an expert for longer than it reads it."""
    if remark := no_number(answer):
        return remark
    config = ModelConfig.flash()
    expert = weights.expert(config)
    tokens = expert.nbytes * DEVICE.best_flops / (2 * expert.parameters * DEVICE.bandwidth)
    batch = tokens * config.n_routed_experts / config.num_experts_per_tok
    if close(answer, batch):
        return None
    if close(answer, tokens):
        return "That many tokens must reach one expert. How large is a batch that sends each expert so many?"
    if close(answer, 2 * batch):
        return "Count two operations for each parameter: a multiplication and an addition."
    if close(answer, tokens * config.num_experts_per_tok / config.n_routed_experts):
        return "A larger batch is needed, not a smaller one: of its tokens only a share of k/E reaches one expert."
    if close(answer, tokens * config.n_routed_experts):
        return "A token goes to k experts, not to one."
    if any(close(answer, batch * bits / 4.25, 0.01) for bits in (4, 8, 16)):
        return "Experts are stored in four bits a weight, and their scales."
    return "Set bytes / bandwidth equal to 2 × parameters × tokens / FLOP/s, for one expert."


@exercise(
    "08.5",
    level="medium",
    minutes=6,
    hints=(
        "The section on the routing weight that goes in before w2 measures one weight for which both orders agree.",
        "Ask for each of the six whether multiplying by it changes only the exponent of a floating-point number, or "
        "its digits as well.",
    ),
)
def weights_that_commute(answer: object) -> str | None:
    """Those of the listed routing weights that may be applied before or after w2 alike."""
    expected = {weight for weight in ROUTING_WEIGHTS if _commutes(weight)}
    try:
        given = {number(weight) for weight in _listed(answer)}
    except (TypeError, ValueError, RuntimeError):
        return "Give a list of the weights."
    if None in given:
        return "Give a list of numbers, without quotes."
    if given == expected:
        return None
    if given and given < expected:
        return "Those are right, and there are more."
    if not given <= set(ROUTING_WEIGHTS):
        return "Choose from the six weights."
    return "FP8 scales are powers of two. What does a weight do to the scale, and what to the elements?"


def _routed(logits: list[float], bias: list[float], k: int) -> tuple[list[int], list[float]]:
    config = replace(ModelConfig.nano(), n_routed_experts=len(logits), num_experts_per_tok=k)
    router = Router(config)
    with torch.no_grad():
        router.weight.zero_()
        router.weight[:, 0] = torch.tensor(logits)
        router.bias.copy_(torch.tensor(bias))
        routing = router(torch.eye(1, config.hidden_size))
    return routing.indices[0].tolist(), routing.weights[0].tolist()


def _listed(part: object) -> list:
    """A sequence as a list; that of an array or tensor holds plain numbers.

    Raises:
        TypeError: it is no sequence. RuntimeError: a tensor without values.
    """
    return list(part.tolist() if hasattr(part, "tolist") else part)  # type: ignore[call-overload]


def _about_choice(got: list[float | None], expected: list[int], logits: list[float]) -> str:
    if got == sorted(range(len(logits)), key=lambda e: -logits[e])[: len(expected)]:
        return say("That is the order of the scores alone. The bias is added to the scores, so it chooses, too.")
    if None in got:
        return say("Experts are whole numbers, from 0 on.")
    if sorted(got) == sorted(expected):
        return say("Those are the right experts. The best comes first, and of equal ones the lower.")
    if len(got) != len(expected):
        return say("Choose k experts.")
    if got == [e + 1 for e in expected]:
        return say("Experts are counted from 0.")
    return say("Take the k largest of score + bias, where a score is the root of the logit's softplus.")


def _about_weights(got: list[float | None], experts: list[int], logits: list[float], bias: list[float]) -> str:
    if None in got:
        return say("They are to be numbers.")
    if len(got) != len(experts):
        return say("There is to be one for each chosen expert.")
    total, (_, right) = sum(got), _routed(logits, bias, len(experts))
    if abs(total - 1) < 1e-5:
        return say("They sum to 1; the model scales them.")
    if abs(total - sum(right)) >= 1e-5:
        return say(
            "They sum to {total:.4g}; the chosen scores are divided by their sum, then scaled by 1.5.", total=total
        )
    keys = [math.sqrt(math.log1p(math.exp(logits[e]))) + bias[e] for e in experts]
    if all(close(a, total * key / sum(keys), 1e-4) for a, key in zip(got, keys, strict=True)):
        return say("Their sum is right. Weigh with the scores alone, without the bias.")
    if all(close(a, b, 1e-5) for a, b in zip(sorted(got), sorted(right), strict=True)):
        return say("They are the right ones in another order than the experts.")
    return say("Their sum is right. Is each of them in proportion to the root of the logit's softplus?")


def _commutes(weight: float) -> bool:
    generator = torch.Generator().manual_seed(8)
    hidden = torch.randn(64, 256, generator=generator)
    return torch.equal(quantize_input(weight * hidden), weight * quantize_input(hidden))
