"""Keeping experts evenly loaded in training: a bias that follows the load, and a small loss within a sequence.

The report (sections 2.1.1 and 4.2.2) gives the parts and their sizes: one bias vector for text and one for images,
speed 0.001 for both, loss weight 1e-4. It does not give the formulas. Those here are DeepSeek-V3's, which is an
assumption.

Source: report sections 2.1.1 and 4.2.2; DeepSeek-V3's report, arXiv 2412.19437, section 2.1.2.
"""

from __future__ import annotations

import torch


def expert_load(indices: torch.Tensor, num_experts: int) -> torch.Tensor:
    """How many tokens chose each expert: int64 [..., k] -> int64 [num_experts].

    For one modality's load pass the rows of its tokens, ``indices[image_mask]`` or ``indices[~image_mask]``.
    """
    return torch.bincount(indices.flatten(), minlength=num_experts)


@torch.no_grad()
def update_bias(bias: torch.Tensor, load: torch.Tensor, speed: float = 0.001) -> None:
    """After a training step, move an overloaded expert's bias down by ``speed`` and an underloaded one's up, in place.

    Args:
        bias: [E], ``gate.bias`` or ``gate.bias_vl``. load: [E], tokens of the bias's own modality, summed over all
            workers. Without such tokens nothing moves.

    Raises:
        ValueError: the shapes differ.
    """
    if bias.shape != load.shape:
        raise ValueError(f"load is {list(load.shape)} for a bias of {list(bias.shape)}")
    # Compared with the mean as a sum, so that whole counts compare exactly.
    bias.add_(torch.sign(load.sum() - load * load.numel()).to(bias.dtype), alpha=speed)


def sequence_balance_loss(
    scores: torch.Tensor, indices: torch.Tensor, sequence: torch.Tensor, weight: float = 1e-4
) -> torch.Tensor:
    """Sum over experts of load share × score share within a sequence, averaged over the sequences.

    Equals ``weight`` at perfect balance and grows to ``weight * E / k`` where all tokens want the same k of E
    experts. The load carries no gradient; the scores do. V3 writes the load with the top k of the unbiased scores;
    the experts that were really chosen are counted here.

    Args:
        scores: float32 [N, E], unbiased. indices: int64 [N, k]. sequence: int64 [N], whose token each row is.

    Returns:
        A scalar; zero without tokens.
    """
    tokens, experts = scores.shape
    names, row = torch.unique(sequence, return_inverse=True)
    if not tokens:
        return scores.sum() * weight
    lengths = torch.bincount(row, minlength=len(names))[:, None]
    slots = (row[:, None] * experts + indices).flatten()
    load = torch.bincount(slots, minlength=len(names) * experts).view(-1, experts)
    load_share = load * experts / (lengths * indices.shape[1])
    normalized = scores / scores.sum(-1, keepdim=True).clamp_min(torch.finfo(scores.dtype).tiny)
    score_share = scores.new_zeros(len(names), experts).index_add(0, row, normalized) / lengths
    return weight * (load_share * score_share).sum(-1).mean()
