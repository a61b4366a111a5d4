"""Look-back windows: each token's last few compressed ids, across the chunks of a sequence.

Column k of a window is the id k tokens back. DEAD stands where nothing may be looked up: before the start of the
sequence, and at every position of an image. The history that a sequence carries from chunk to chunk has the same
order, so the history after a token is that token's window without its last column; to take back rejected tokens,
keep the windows and take the row of the last accepted one.

Source: report section 2.4.2; the released ``inference/engram.py``.
"""

from __future__ import annotations

import torch

from ds41.cache import DEAD


def new_history(sequences: int, max_ngram: int, device: torch.device | str | None = None) -> torch.Tensor:
    """The history of sequences that have no tokens yet: DEAD, int64 [sequences, max_ngram - 1]."""
    return torch.full((sequences, max_ngram - 1), DEAD, dtype=torch.int64, device=device)


def look_back(
    compressed: torch.Tensor,
    positions: torch.Tensor,
    sequence: torch.Tensor,
    history: torch.Tensor,
    validate: bool = True,
) -> torch.Tensor:
    """Windows of a flat batch, int64 [N, max_ngram].

    Args:
        compressed: int64 [N], compressed ids or DEAD; the chunks of all sequences one after the other.
        positions: int64 [N], position of each token in its own sequence. A column that would reach before position
            0 is DEAD whatever the history says, so what a finished sequence left behind is never read.
        sequence: int64 [N], the row of ``history`` that each token belongs to.
        history: int64 [sequences, max_ngram - 1], the ids before this chunk, the newest first.
        validate: look at the values too, not only at the shapes (on a GPU that waits for the device).

    Raises:
        ValueError: shapes do not fit, or a sequence's tokens are not neighbours at consecutive positions.
    """
    tokens = compressed.shape[0]
    for name, tensor in (("compressed", compressed), ("positions", positions), ("sequence", sequence)):
        if tensor.dtype != torch.int64 or tuple(tensor.shape) != (tokens,):
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; expected torch.int64 [{tokens}]")
    if history.dtype != torch.int64 or history.dim() != 2 or history.shape[1] < 1:
        raise ValueError(
            f"history is {history.dtype} {list(history.shape)}; expected torch.int64 [sequences, 1 or more]"
        )
    if not tokens:
        return compressed.new_empty(0, history.shape[1] + 1)
    if validate:
        _check_order(positions, sequence, history.shape[0])
    index = torch.arange(tokens, device=compressed.device)
    is_first = torch.cat((sequence.new_ones(1, dtype=torch.bool), sequence[1:] != sequence[:-1]))
    since_first = index - torch.where(is_first, index, 0).cummax(0).values
    back = torch.arange(history.shape[1] + 1, device=compressed.device)
    in_chunk = compressed[(index[:, None] - back).clamp(min=0)]
    before_chunk = (back - since_first[:, None] - 1).clamp(0, history.shape[1] - 1)
    carried = history[sequence].gather(1, before_chunk)
    windows = torch.where(back <= since_first[:, None], in_chunk, carried)
    return torch.where(back <= positions[:, None], windows, DEAD)


def history_after(windows: torch.Tensor, sequence: torch.Tensor, history: torch.Tensor) -> torch.Tensor:
    """The history after a chunk, same shape as ``history``; sequences without a token in it keep theirs.

    Args:
        windows: int64 [N, max_ngram] from :func:`look_back`. sequence, history: as given to it.
    """
    if not windows.shape[0]:
        return history.clone()
    index = torch.arange(windows.shape[0], device=windows.device)
    last = torch.full_like(history[:, 0], -1).scatter_reduce(0, sequence, index, "amax")
    return torch.where(last[:, None] >= 0, windows[last.clamp(min=0), :-1], history)


def _check_order(positions: torch.Tensor, sequence: torch.Tensor, sequences: int) -> None:
    lowest, highest = int(sequence.min()), int(sequence.max())
    if lowest < 0 or highest >= sequences:
        raise ValueError(
            f"sequence holds {lowest if lowest < 0 else highest}; there are histories 0 to {sequences - 1}"
        )
    if int(positions.min()) < 0:
        raise ValueError(f"positions hold {int(positions.min())}; expected 0 or more")
    stays = sequence[1:] == sequence[:-1]
    jumps = stays & (positions[1:] != positions[:-1] + 1)
    if bool(jumps.any()):
        at = int(jumps.nonzero()[0]) + 1
        raise ValueError(
            f"token {at} follows position {int(positions[at - 1])} of sequence {int(sequence[at])} "
            f"and has position {int(positions[at])}; expected the next one"
        )
    if int((~stays).sum()) + 1 != sequence.unique().numel():
        raise ValueError("a sequence's tokens do not lie next to each other")
