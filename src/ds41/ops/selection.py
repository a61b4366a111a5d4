"""Which entries a query reads: one deterministic rule for entries and for candidate blocks.

Scores are float32, the largest win, the lower index wins a tie, indices come out ascending, and -1 fills what is
left. Minus infinity and NaN are never selected.

Source: report section 2.3.2; the published code has no tie rule.
"""

from __future__ import annotations

import torch

_LOWEST = -(2**63)


def top_entries(scores: torch.Tensor, count: int) -> torch.Tensor:
    """The ``count`` largest of each row: int64 [N, min(count, L)], ascending, padded with -1.

    Args:
        scores: float32 [N, L]; minus infinity (or NaN) marks what may not be selected.
    """
    rows, length = scores.shape
    width = min(count, length)
    if width == 0:
        return torch.empty(rows, 0, dtype=torch.int64, device=scores.device)
    keys = _ranked(scores)
    best = torch.topk(keys, width, dim=-1, sorted=False).values
    indices = 0xFFFFFFFF - (best & 0xFFFFFFFF)
    # Padding sorts behind every index, then becomes -1.
    indices = torch.where(best == _LOWEST, length, indices).sort(dim=-1).values
    return torch.where(indices == length, -1, indices)


def candidate_blocks(scores: torch.Tensor, visible: torch.Tensor, block: int, budget: int) -> torch.Tensor:
    """The candidate pool: the blocks of ``block`` entries with the largest maxima, the newest one always among them.

    Args:
        scores: float32 [N, L], minus infinity where an entry is not visible. visible: int64 [N], entries 0 to
            visible - 1 of each query. budget: how many blocks are kept, the newest one included.

    Returns:
        int64 [N, min(budget, blocks)], ascending block numbers, padded with -1.
    """
    rows, length = scores.shape
    blocks = -(-length // block)
    padded = torch.nn.functional.pad(scores, (0, blocks * block - length), value=-torch.inf)
    maxima = padded.view(rows, blocks, block).amax(-1)
    newest = (visible - 1) // block
    forced = torch.arange(blocks, device=scores.device) == newest[:, None]
    maxima = maxima.masked_fill(forced & (visible > 0)[:, None], torch.inf)
    return top_entries(maxima, budget)


def entries_of_blocks(blocks: torch.Tensor, block: int, visible: torch.Tensor) -> torch.Tensor:
    """The visible entries of each query's blocks: int64 [N, blocks * block], -1 where there is none.

    Args:
        blocks: int64 [N, blocks], -1 for none. visible: int64 [N].
    """
    lanes = torch.arange(block, device=blocks.device)
    entries = (blocks[..., None] * block + lanes).flatten(1)
    usable = (blocks >= 0).repeat_interleave(block, dim=1) & (entries < visible[:, None])
    return torch.where(usable, entries, -1)


def _ranked(scores: torch.Tensor) -> torch.Tensor:
    """int64 keys whose order is that of the scores, and of falling indices among equal ones: all distinct."""
    # Adding zero turns -0 into 0, so that the two tie.
    bits = (scores + 0.0).view(torch.int32).to(torch.int64)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    columns = torch.arange(scores.shape[1], device=scores.device)
    keys = (ordered << 32) | (0xFFFFFFFF - columns)
    return keys.masked_fill_(~(scores > -torch.inf), _LOWEST)
