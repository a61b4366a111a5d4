"""Exercises of chapter 08, mixture of experts."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ds41 import weights
from ds41.config import ModelConfig
from ds41.exercises import close, exercise
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


@exercise("08.1")
def batch_that_reads_half(answer: object) -> str | None:
    """Batch at which even routing reads half of the experts: a real number, or the next whole one."""
    config = ModelConfig.flash()
    share = config.num_experts_per_tok / config.n_routed_experts
    expected = math.log(0.5) / math.log(1 - share)
    if close(answer, expected) or close(answer, math.ceil(expected), 0):
        return None
    if close(answer, 0.5 / share, 0):
        return "That is right only if no two tokens share an expert."
    return "An expert stays unread if every token of the batch passes it by: (1 - k/E)^B."


@exercise("08.2")
def route_one_token(answer: object) -> str | None:
    """A function (logits, bias, k) -> (experts, weights) of one token."""
    if not callable(answer):
        return "Give the function itself, not a value of it."
    for logits, bias, k in TOKENS:
        experts, expected = _routed(logits, bias, k)
        try:
            got_experts, got_weights = (list(part) for part in answer(list(logits), list(bias), k))
        except (TypeError, ValueError):
            return "Return two lists, the experts and their weights."
        where = f"For logits {logits}, biases {bias} and k = {k}"
        if got_experts != experts:
            return f"{where} it chooses {got_experts}. {_about_choice(got_experts, experts, logits)}"
        if len(got_weights) != k or not all(close(*pair, 1e-5) for pair in zip(got_weights, expected, strict=True)):
            return f"{where} the choice is right and the weights are not. {_about_weights(got_weights, expected)}"
    return None


@exercise("08.3")
def active_with_eight(answer: object) -> str | None:
    """Active parameters in decode, without the head, if a token visited eight routed experts."""
    config = ModelConfig.flash()
    eight = replace(config, num_experts_per_tok=8)
    if close(answer, weights.active(eight).parameters, 1e-4):
        return None
    if close(answer, weights.active(eight).parameters + weights.head(config).parameters, 1e-4):
        return "That counts the head, too."
    if close(answer, weights.active(config).parameters * 8 / 6, 1e-3):
        return "Only the routed experts become more; attention and the rest stay."
    if close(answer, weights.active(config).parameters + 2 * weights.expert(config).parameters, 1e-4):
        return "Two more in each layer."
    return "Start from weights.active(config) and add two experts in every layer."


@exercise("08.4")
def batch_that_computes(answer: object) -> str | None:
    """Batch from which on an H200 computes with an expert for longer than it reads it."""
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
    if close(answer, batch * 8 / 4.25, 0.01):
        return "Experts are stored in four bits a weight, and their scales."
    return "Set bytes / bandwidth equal to 2 × parameters × tokens / FLOP/s, for one expert."


@exercise("08.5")
def weights_that_commute(answer: object) -> str | None:
    """Those of the listed routing weights that may be applied before or after w2 alike."""
    expected = {weight for weight in ROUTING_WEIGHTS if _commutes(weight)}
    try:
        given = set(answer)  # type: ignore[call-overload]
    except TypeError:
        return "Give a list of the weights."
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


def _about_choice(got: list, expected: list[int], logits: list[float]) -> str:
    if got == sorted(range(len(logits)), key=lambda e: -logits[e])[: len(expected)]:
        return "That is the order of the scores alone; the bias chooses, too."
    if sorted(map(str, got)) == sorted(map(str, expected)):
        return "Those are the right experts. The best comes first, and of equal ones the lower."
    return "Take the k largest of score + bias."


def _about_weights(got: list, expected: list[float]) -> str:
    try:
        total = sum(map(float, got))
    except (TypeError, ValueError):
        return "They are to be numbers."
    if abs(total - 1) < 1e-5:
        return "They sum to 1; the model scales them."
    if abs(total - sum(expected)) < 1e-5:
        return "Their sum is right. Weigh with the scores alone, without the bias."
    return f"They sum to {total:.4g}; the chosen scores are divided by their sum, then scaled by 1.5."


def _commutes(weight: float) -> bool:
    generator = torch.Generator().manual_seed(8)
    hidden = torch.randn(64, 256, generator=generator)
    return torch.equal(quantize_input(weight * hidden), weight * quantize_input(hidden))
