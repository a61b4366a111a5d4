"""Single-pass manifold-constrained hyper-connections (mHC): the residual stream as n parallel streams.

A site is one sublayer with its way in and out; every layer has two, attention and FFN. A site predicts from the
streams that it receives how to write its output back (``post``), how to mix the streams (``comb``), and how the
*next* site collapses them into its input (``pre``): the one-site shift. The first site collapses with
:func:`first_weights`, and the last site's ``pre`` collapses the streams for the final norm.

    site = HyperConnection(config)
    coefficients = site(streams)
    y = sublayer(norm(collapse(streams, pre)))            # pre of the site before
    streams, pre = expand(streams, y, coefficients), coefficients.pre

:meth:`HyperConnection.enter` is the same cut between sublayers instead of around one: the ``expand`` of a site and
the ``collapse`` of the next, with the prediction between them, need one sweep over the streams.

Source: report section 2.4.1 (Eq. 6); the released model's ``Block``; mHC paper, arXiv 2512.24880.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn

from ds41.config import ModelConfig
from ds41.norm import RMSNorm
from ds41.ops import choose_backend
from ds41.ops.operators import operators
from ds41.precision import float32_linear, without_autocast

# The published number of streams, and the only one that the fused kernel is written for.
_KERNEL_STREAMS = 4


class Coefficients(NamedTuple):
    """What one site predicts for each of N tokens with n streams, all float32.

    pre [N, n]: weights with which the next site collapses the streams, each in (eps, 1 + eps); no sum is kept.
    post [N, n]: weight of this site's output in each stream, in (0, 2).
    comb [N, n, n]: new stream k takes comb[j, k] of old stream j. Each column sums to one, a row nearly.
    """

    pre: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor


class Update(NamedTuple):
    """What a site adds to the streams that it received: its sublayer's output y [N, d], spread by its coefficients."""

    y: torch.Tensor
    coefficients: Coefficients


class Entry(NamedTuple):
    """The way into a site: its sublayer's input x [N, d], normalised; the streams [N, n, d] that the site received;
    the coefficients that it predicts from them."""

    x: torch.Tensor
    streams: torch.Tensor
    coefficients: Coefficients


class HyperConnection(nn.Module):
    """Predicts the coefficients of one site, in float32.

    Parameters, float32 also in a checkpoint: ``fn`` [n * n + 2 n, n * hidden], whose rows are pre, post and comb row
    by row and whose columns run stream after stream; ``base`` [n * n + 2 n]; ``scale`` [3] for pre, post and comb.

    A new site starts with scale 0.01 (published in the mHC paper); that ``fn`` starts normal with
    ``initializer_range`` and ``base`` at zero is an assumption. So every token starts near pre 1/2, post 1, comb 1/n.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.streams = config.hc_mult
        self.hidden_size = config.hidden_size
        self.iterations = config.hc_sinkhorn_iters
        self.eps = config.hc_eps
        self.norm_eps = config.rms_norm_eps
        rows = self.streams * (self.streams + 2)
        fn = torch.empty(rows, self.streams * self.hidden_size, dtype=torch.float32)
        self.fn = nn.Parameter(fn.normal_(0, config.initializer_range))
        self.base = nn.Parameter(torch.zeros(rows, dtype=torch.float32))
        self.scale = nn.Parameter(torch.full((3,), 0.01, dtype=torch.float32))

    def forward(self, streams: torch.Tensor) -> Coefficients:
        """streams [N, n, hidden] in any float type -> the coefficients of this site.

        Raises:
            ValueError: another shape. TypeError: the parameters were cast away from float32.
        """
        n = self.streams
        if streams.shape[1:] != (n, self.hidden_size):
            raise ValueError(f"streams are {list(streams.shape)}; expected [tokens, {n}, {self.hidden_size}]")
        flat = streams.to(torch.float32).flatten(1)
        # One statistic over all streams together, applied after the projection: the projection can then run while
        # the sum of squares is still being taken, in one pass over the streams.
        norm_factor = torch.rsqrt(flat.square().mean(-1, keepdim=True) + self.norm_eps)
        return self.coefficients(float32_linear(flat, self.fn, "the hyper-connection's fn") * norm_factor)

    def enter(self, streams: torch.Tensor, update: Update | None, pre: torch.Tensor, norm: RMSNorm) -> Entry:
        """The way from one sublayer to the next: write the update, collapse, normalise, predict. One sweep suffices.

        Args:
            streams: [N, n, d], as the site before received them, or as they are if ``update`` is None.
            pre: float32 [N, n], predicted at the site before, that collapse the streams with the update written.
        """
        if runs_on_kernels(streams):
            predictor = (self.fn, self.base, self.scale, norm.weight, norm.eps, self.eps, self.iterations)
            x, streams, *found = operators.hyper_connection_site(streams, *_parts(update), pre, *predictor)
            return Entry(x, streams, Coefficients(*found))
        if update is not None:
            streams = expand(streams, *update)
        return Entry(norm(collapse(streams, pre)), streams, self(streams))

    def coefficients(self, mixes: torch.Tensor) -> Coefficients:
        """What is left to do per token after the pass over its streams.

        Args:
            mixes: float32 [N, n * n + 2 n], ``fn`` times the streams over their root mean square.
        """
        n = self.streams
        pre, post, comb = mixes.split((n, n, n * n), dim=-1)
        base_pre, base_post, base_comb = self.base.split((n, n, n * n))
        logits = (comb * self.scale[2] + base_comb).unflatten(-1, (n, n))
        return Coefficients(
            pre=torch.sigmoid(pre * self.scale[0] + base_pre) + self.eps,
            post=2 * torch.sigmoid(post * self.scale[1] + base_post),
            comb=sinkhorn(logits, self.iterations, self.eps),
        )

    def extra_repr(self) -> str:
        return f"{self.streams} streams of {self.hidden_size}, {self.iterations} Sinkhorn iterations"


def sinkhorn(logits: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """[N, n, n] logits -> positive matrices, columns summing to one up to ``eps``, rows nearly.

    A softmax over each row, then rows and columns in turn are divided by their sum, ``iterations`` times in all and
    columns last. ``eps`` joins every entry once and every divisor. Rows are left slightly off on purpose: with exact
    columns each new stream is an average of the old ones.
    """
    # Tokens last: a sum over n neighbouring numbers is slow, one over n rows of tokens is not.
    matrix = torch.softmax(logits.permute(1, 2, 0).contiguous(), dim=1) + eps
    matrix = matrix / (matrix.sum(0, keepdim=True) + eps)
    for _ in range(iterations - 1):
        matrix = matrix / (matrix.sum(1, keepdim=True) + eps)
        matrix = matrix / (matrix.sum(0, keepdim=True) + eps)
    return matrix.permute(2, 0, 1).contiguous()


def collapse(streams: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Weighted sum of ``streams`` [N, n, d] by ``weights``, float32 [N, n] -> [N, d].

    Summed in float32, returned in the type of ``streams``. The weights are used as they are: they need not sum to one.
    """
    with without_autocast(streams.device):
        return torch.bmm(weights[:, None], streams.to(torch.float32))[:, 0].to(streams.dtype)


def expand(streams: torch.Tensor, y: torch.Tensor, coefficients: Coefficients) -> torch.Tensor:
    """Write a sublayer's output into the mixed streams: new[k] = post[k] * y + sum over j of comb[j, k] * old[j].

    Args:
        streams: [N, n, d], as the site received them. y: [N, d].

    Returns:
        [N, n, d] in the type of ``streams``, computed in float32.
    """
    post, comb = coefficients.post, coefficients.comb
    with without_autocast(streams.device):
        mixed = torch.bmm(comb.transpose(1, 2), streams.to(torch.float32))
        return mixed.addcmul_(post[:, :, None], y[:, None].to(torch.float32)).to(streams.dtype)


def leave(streams: torch.Tensor, update: Update | None, pre: torch.Tensor, norm: RMSNorm) -> torch.Tensor:
    """The way out after the last site: write its update, collapse, normalise.

    ``streams`` [N, n, d] and ``pre`` [N, n]; arguments as in :meth:`HyperConnection.enter`. Returns [N, d].
    """
    if runs_on_kernels(streams):
        return operators.hyper_collapse(streams, *_parts(update), pre, norm.weight, norm.eps)
    return norm(collapse(streams if update is None else expand(streams, *update), pre))


def runs_on_kernels(streams: torch.Tensor) -> bool:
    """Whether the sweep between two sublayers is one kernel here: for ``streams`` [N, 4, d], without a gradient."""
    if torch.is_grad_enabled() or streams.shape[1] != _KERNEL_STREAMS:
        return False
    return choose_backend(streams.device).name == "triton"


def _parts(update: Update | None) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    return (None, None, None) if update is None else (update.y, update.coefficients.post, update.coefficients.comb)


def repeat_to_streams(x: torch.Tensor, n: int) -> torch.Tensor:
    """``x`` [N, d] -> [N, n, d]: every stream starts as the token's embedding, unscaled."""
    return x[:, None].repeat(1, n, 1)


def first_weights(tokens: int, n: int, device: torch.device | str | None = None) -> torch.Tensor:
    """Collapse weights of the very first site, which has none before it: stream 0 alone, float32 [tokens, n]."""
    weights = torch.zeros(tokens, n, dtype=torch.float32, device=device)
    weights[:, 0] = 1
    return weights
