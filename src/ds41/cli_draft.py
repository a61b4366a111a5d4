"""``--draft`` of the commands that write text: the drafter beside a model, its policy, what became of its drafts."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ds41.cli_model import part_folder

if TYPE_CHECKING:
    from ds41.dspark import Calibration, DraftCounts, Drafter, Drafting, Optimum, Policy
    from ds41.model import Model

CALIBRATION_FILE = "drafting.json"
_ALWAYS, _OPTIMUM, _THRESHOLD = "always", "optimum", "threshold:"
# Tokens of context at which steps are timed for the optimum.
_PROFILED = 256


def add_draft_option(command: argparse.ArgumentParser) -> None:
    """``--draft``, with or without a policy."""
    command.add_argument(
        "--draft",
        nargs="?",
        const=_ALWAYS,
        type=_policy_text,
        metavar="POLICY",
        help="let the checkpoint's drafter guess what follows, and verify several guesses in one step. POLICY: always, "
        "whole blocks (default); threshold:C, the drafts before the first whose confidence is below C; optimum, "
        "what pays by the times of steps, which are measured first",
    )


def load_drafting(options: argparse.Namespace, folder: str | None, model: Model) -> Drafting | None:
    """How ``--draft`` says that the tokens of a model are drafted; None without it.

    Args:
        folder: of the checkpoint; None with a preset.

    Raises:
        ValueError: there is no drafter beside the model, or its calibration cannot be read.
    """
    if options.draft is None:
        return None
    from ds41.dspark import Drafting, load_drafter

    found = part_folder(options, folder, "drafter")
    drafter = load_drafter(found, model.quantization, model.dtype, model.device)
    return Drafting(drafter, _policy(options, model, drafter), load_calibration(found))


def untimed_policy(options: argparse.Namespace, block: int) -> Policy | None:
    """What ``--draft`` says, for blocks of ``block`` drafts, where no model is at hand to be timed; None without it.

    Raises:
        ValueError: it says optimum.
    """
    from ds41.dspark import Always, Threshold

    if options.draft is None:
        return None
    if options.draft == _OPTIMUM:
        raise ValueError("--draft optimum times this process's steps, and with --ray others take them; give another")
    return Always(block) if options.draft == _ALWAYS else Threshold(float(options.draft.removeprefix(_THRESHOLD)))


def load_calibration(folder: str | Path) -> Calibration | None:
    """What was fitted to a checkpoint's drafter and lies beside it, in ``drafting.json``; None if nothing does.

    Raises:
        ValueError: the file holds no calibration.
    """
    from ds41.dspark import Calibration

    path = Path(folder, CALIBRATION_FILE)
    if not path.is_file():
        return None
    try:
        return Calibration.from_dict(json.loads(path.read_text(encoding="utf-8"))["calibration"])
    except (ValueError, KeyError, TypeError) as error:
        fault = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise ValueError(f"{path} holds no calibration of a drafter: {fault}") from error


def drafting_line(counts: DraftCounts) -> str:
    """Rounds, and drafts accepted of those verified by their place in the block."""
    pairs = zip(counts.accepted.tolist(), counts.verified.tolist(), strict=True)
    places = ", ".join(f"{accepted} of {verified}" for accepted, verified in pairs)
    return f"{counts.rounds} rounds, {counts.tokens_a_round:.2f} tokens a round; accepted by place: {places}"


def _policy_text(text: str) -> str:
    if text in (_ALWAYS, _OPTIMUM):
        return text
    try:
        if text.startswith(_THRESHOLD) and 0 <= float(text.removeprefix(_THRESHOLD)) <= 1:
            return text
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f"{text!r} is no policy; expected always, optimum, or threshold:C with C from 0 to 1. With no policy, --draft "
        "stands last or before another option"
    )


def _policy(options: argparse.Namespace, model: Model, drafter: Drafter) -> Policy:
    if options.draft == _OPTIMUM:
        return _optimum(options, model, drafter)
    return untimed_policy(options, drafter.config.dspark_block_size)


def _optimum(options: argparse.Namespace, model: Model, drafter: Drafter) -> Optimum:
    """Times of this machine, for one sequence."""
    from ds41.dspark import Optimum
    from ds41.dspark.profile import profile_drafts, profile_steps

    began = time.perf_counter()
    context = min(_PROFILED, model.config.max_position_embeddings // 2)
    steps = profile_steps(model, drafter, context, requests=1)
    # A curve has two points.
    drafts = profile_drafts(model, drafter, context, requests=(1, 2))
    if options.verbose:
        block = drafter.config.dspark_block_size + 1
        one, whole, draft = (1e3 * seconds for seconds in (
            steps.step_seconds(1), steps.step_seconds(block), drafts.step_seconds(1)
        ))  # fmt: skip
        print(
            f"ds41: profiled in {time.perf_counter() - began:.1f} s at {context} tokens: a step of 1 token takes "
            f"{one:.1f} ms, of {block} tokens {whole:.1f} ms, a draft {draft:.1f} ms",
            file=sys.stderr,
        )
    return Optimum(steps, drafts)
