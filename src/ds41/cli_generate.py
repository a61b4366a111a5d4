"""``ds41 generate``: text from a checkpoint, or from a preset."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ds41.cli_draft import add_draft_option, drafting_line, load_drafting
from ds41.cli_images import add_image_option, place_images, read_images
from ds41.cli_model import (
    add_model_options,
    add_quantization_option,
    add_sampling_options,
    described,
    load_model,
    run_command,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from ds41.environment import Environment
    from ds41.model import Model


def add_generate_command(commands: argparse._SubParsersAction) -> None:
    generate = commands.add_parser(
        "generate",
        usage="ds41 generate [options] (FOLDER | --preset NAME) PROMPT",
        help="continue a text with a model",
        description="Continues a text, token by token. The model is a checkpoint folder in the official format, or a "
        "preset: nano as it was trained, mini with random weights.",
        epilog="The prompt is preceded by the model's begin token. At temperature 0 the text is the same with --draft "
        "and without, up to rounding. The text goes to stdout, everything else to stderr.",
    )
    generate.add_argument(
        "words", nargs="*", metavar="FOLDER PROMPT", help="checkpoint folder (none with --preset), and the text to "
        "continue: - reads it from stdin"
    )  # fmt: skip
    add_sampling_options(generate, seed="for the same text again (default: another each time)")
    add_quantization_option(generate, unrounded=True)
    generate.add_argument(
        "--decoder",
        choices=("full", "bounded", "exact"),
        default="full",
        help="run the decoder layers on the whole prompt, on its last window only, or on what an exact end needs "
        "(default: full)",
    )
    add_draft_option(generate)
    add_image_option(generate)
    add_model_options(generate)
    generate.set_defaults(run=_generate)


def _generate(options: argparse.Namespace) -> int:
    return run_command(lambda: _prepare_and_write(options))


def _prepare_and_write(options: argparse.Namespace) -> int:
    # Imported here: --help and errors of usage should not wait for torch.
    from ds41 import environment
    from ds41.sampling import check_sampling

    check_sampling(options.temperature, options.top_p, options.seed)
    folder, prompt = _words(options)
    # The interpreter has to be set up before the operations import triton.
    found = environment.prepare(options.device)
    _write_text(options, folder, prompt, found)
    return 0


def _write_text(options: argparse.Namespace, folder: str | None, prompt: str, found: Environment) -> None:
    from ds41.generation import generate, stream_text

    began = time.perf_counter()
    # What cannot be read is refused before the model is.
    images = read_images(options.image)
    model, tokenizer = load_model(options, folder, found)
    if options.verbose:
        print(f"ds41: {found.report()}", file=sys.stderr)
        print(f"ds41: {described(model)}, ready after {time.perf_counter() - began:.1f} s", file=sys.stderr)
    drafting = load_drafting(options, folder, model)
    ids, vectors = place_images(options, folder, model, _prompt_ids(model, tokenizer, prompt), images)
    drawn = generate(
        model,
        ids,
        options.max_new_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        decoder=options.decoder,
        drafting=drafting,
        image_vectors=vectors,
    )
    clock = _Clock(drawn)
    for piece in stream_text(clock, tokenizer):
        print(piece, end="", flush=True)
    print()
    if options.verbose:
        print(f"ds41: prompt of {len(ids)} tokens; {clock.report()}", file=sys.stderr)
        if drafting is not None:
            print(f"ds41: drafted in {drafting_line(drafting.counts)}", file=sys.stderr)


def _words(options: argparse.Namespace) -> tuple[str | None, str]:
    """Folder (None with a preset) and prompt."""
    expected = ["PROMPT"] if options.preset else ["FOLDER", "PROMPT"]
    if len(options.words) != len(expected):
        form = f"--preset {options.preset} PROMPT" if options.preset else "FOLDER PROMPT, or --preset and PROMPT"
        raise ValueError(f"generate takes {form}; it was given {len(options.words)} of {len(expected)} words")
    prompt = _standard_input() if options.words[-1] == "-" else options.words[-1]
    if not prompt:
        raise ValueError("the prompt is empty")
    return (None if options.preset else options.words[0]), prompt


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt on stdin is not UTF-8: byte {error.start}") from error


def _prompt_ids(model: Model, tokenizer: Tokenizer, prompt: str) -> list[int]:
    ids = tokenizer.encode(prompt).ids
    begin = model.config.bos_token_id
    return ids if ids[:1] == [begin] else [begin, *ids]


class _Clock:
    """Passes ids through and takes the time: to the first, and from there on."""

    def __init__(self, ids: Iterable[int]) -> None:
        self._ids = ids
        self.count = 0
        self.to_first = self.after_first = 0.0

    def __iter__(self) -> Iterator[int]:
        began = time.perf_counter()
        for token in self._ids:
            if self.count == 0:
                self.to_first = time.perf_counter() - began
            self.count += 1
            self.after_first = time.perf_counter() - began - self.to_first
            yield token

    def report(self) -> str:
        if not self.count:
            return "no token was generated"
        line = f"{self.count} generated, the first after {self.to_first:.2f} s"
        if self.count > 1:
            line += f", then {(self.count - 1) / self.after_first:.1f} tokens/s"
        return line
