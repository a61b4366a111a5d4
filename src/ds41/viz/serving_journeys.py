"""Journeys through the serving stack as they follow from a configuration.

Five requests: a cold prompt; the next turn while its windows are in the pool; the next turn after they have gone; a
picture; and a decode worker that is lost in the middle of an answer.

Source: report sections 3.2.1 and 3.2.2.
"""

from __future__ import annotations

from ds41.cache import PageLayout
from ds41.config import ModelConfig
from ds41.replay import KeptWindows
from ds41.vision.sizes import plan_image
from ds41.viz.layer_map import halves
from ds41.viz.replay_timeline import resume
from ds41.viz.serving_steps import (
    Stack,
    arrival,
    counted,
    decode,
    hand_over,
    handed,
    leave,
    nothing_found,
    prefill,
    queued,
)
from ds41.viz.serving_trace import EVICTABLE, IN_STORE, IN_USE, IN_WINDOW_POOL, Flow, Journey, Kept, Step

# A vector of a picture is as wide as the model, in bfloat16.
_BF16_BYTES = 2


def journeys(
    config: ModelConfig,
    tokens: int = 100_000,
    new_tokens: int = 2_000,
    answer_tokens: int = 500,
    picture: tuple[int, int] = (1920, 1080),
    windows: KeptWindows = "all",
    page_tokens: int = 64,
) -> tuple[Journey, ...]:
    """The five journeys, four where the model takes no pictures.

    Args:
        tokens: of the cold prompt, which is also the first turn of the conversation that goes on. new_tokens: that
            each next turn brings, and the text beside the picture. answer_tokens: of every answer, the token that
            ends it left out. picture: width and height in pixels. windows: as in :class:`ds41.serving.Engine`.
        page_tokens: of a page.

    Raises:
        ValueError: a count too small, a conversation no longer than the window, or layers that are not an encoder and
            a decoder with keys. ImageError: a picture that the model cannot take.
    """
    for name, value, least in (
        ("tokens", tokens, 1),
        ("new_tokens", new_tokens, 1),
        # The first is drawn by the prefill; with less there would be no decode.
        ("answer_tokens", answer_tokens, 2),
    ):
        if value < least:
            raise ValueError(f"{name} is {value}; expected {least} or more")
    if tokens + answer_tokens <= config.sliding_window:
        raise ValueError(
            f"tokens and answer_tokens are {tokens} and {answer_tokens}; expected more than the window of "
            f"{config.sliding_window} in all: no shorter prefix is taken up again"
        )
    if not config.kv_source_layer_ids or len(halves(config)) != 2:
        raise ValueError("these layers are not an encoder and a decoder with keys of their own")
    stack = Stack(config, windows, PageLayout.of(config, page_tokens))
    turn = (stack, tokens, new_tokens, answer_tokens)
    made = [_cold(stack, tokens, answer_tokens), _restored(*turn), _replayed(*turn)]
    if config.vision is not None:
        made.append(_picture(stack, new_tokens, answer_tokens, picture))
    return (*made, _lost(stack, tokens, answer_tokens))


def _cold(stack: Stack, tokens: int, answer: int) -> Journey:
    overview = (
        f"<b>A cold prompt</b> of {tokens:,} tokens: nothing is known of it, so all of it is computed. What the answer "
        f"leaves behind is {stack.pages(0, tokens + answer):,} B of pages and {stack.pooled(tokens + answer):,} B of "
        "windows."
    )
    run = resume(stack.config, tokens, 0)
    steps = (
        *arrival(tokens),
        nothing_found(),
        *prefill(stack, run),
        hand_over(stack, 0, tokens),
        *decode(stack, tokens, answer),
        leave(stack, tokens, answer),
    )
    return Journey("Cold prompt", f"{tokens:,} tokens", overview, steps, stack.tables)


def _restored(stack: Stack, tokens: int, new: int, answer: int) -> Journey:
    known, prompt = tokens + answer, tokens + answer + new
    run = resume(stack.config, prompt, known, stack.windows)
    held, pages, windows = stack.whole_pages(tokens), stack.pages(0, known), stack.pooled(known)
    overview = (
        f"<b>The next turn, within minutes.</b> It brings {new:,} tokens. The windows are still in the pool, the pages "
        f"in memory or on disk: the conversation goes on where it stopped, and {counted(run.replayed)} run again."
    )
    found = Step(
        "prefill",
        "finds the prefix",
        f"The whole pages of the last prompt are still in the worker's memory, {held:,} tokens. The rest, the answer "
        "among it, comes from the store, and the windows from the pool.",
        (
            Flow("pages", "prefill", "tokens", amount=f"{held:,}", kind="main"),
            Flow("store", "prefill", "pages", stack.pages(held, known), kind="main"),
            Flow("windows", "prefill", "windows", windows, kind="window"),
        ),
        kept=(Kept("pages", pages, IN_USE),),
    )
    left = (
        Kept("pages", pages, EVICTABLE),
        Kept("store", pages, IN_STORE),
        Kept("windows", windows, IN_WINDOW_POOL),
    )
    steps = (
        *arrival(prompt),
        found,
        *prefill(stack, run),
        hand_over(stack, stack.whole_pages(known), prompt),
        *decode(stack, prompt, answer),
        leave(stack, prompt, answer, before=True),
    )
    return Journey("Next turn", "within minutes", overview, steps, (*stack.tables, *left))


def _replayed(stack: Stack, tokens: int, new: int, answer: int) -> Journey:
    known, prompt = tokens + answer, tokens + answer + new
    run = resume(stack.config, prompt, known)
    pages = stack.pages(0, known)
    overview = (
        f"<b>The next turn, hours later.</b> It brings {new:,} tokens. The windows are gone, the pages are on disk. "
        f"They are read, {counted(run.replayed)} run again to make windows, and nothing else of the {known:,} does."
    )
    found = Step(
        "prefill",
        "finds the prefix",
        f"The window pool has forgotten the conversation; the store has the pages of all {known:,} tokens.",
        (
            Flow("store", "prefill", "pages", pages, kind="main"),
            Flow("windows", "prefill", "found", amount="nothing", kind="window"),
        ),
        kept=(Kept("pages", pages, IN_USE),),
    )
    steps = (
        *arrival(prompt),
        found,
        *prefill(stack, run),
        hand_over(stack, 0, prompt),
        *decode(stack, prompt, answer),
        leave(stack, prompt, answer),
    )
    return Journey("Next turn", "after the minutes", overview, steps, (*stack.tables, Kept("store", pages, IN_STORE)))


def _picture(stack: Stack, text: int, answer: int, size: tuple[int, int]) -> Journey:
    config = stack.config
    plan = plan_image(*size, config.vision)
    span, prompt = plan.span_tokens, text + plan.span_tokens
    pixels = f"{plan.width:,} × {plan.height:,}"
    overview = (
        f"<b>A picture of {pixels} pixels</b> beside {text:,} tokens of text. It takes {span:,} places in the prompt; "
        "from the prefill on they are tokens like any other."
    )
    encode = Step(
        "vision",
        "encodes the picture",
        f"The tower sees {plan.patches:,} patches and gives a vector for each of the {span:,} places. No prompt waits "
        "for that but its own, and a picture that was seen before is not encoded again.",
        (Flow("vision", "prefill", "vectors", span * config.hidden_size * _BF16_BYTES),),
        f"{plan.patches:,} patches × {config.vision.num_hidden_layers} layers of the tower",
    )
    request = Step(
        "endpoint",
        "takes the request",
        "Text and picture arrive together. One placeholder in the text says where the picture stands.",
        (
            Flow("clients", "endpoint", "tokens", amount=f"{text:,}"),
            Flow("endpoint", "vision", "pixels", amount=pixels),
        ),
    )
    steps = (
        request,
        encode,
        queued(prompt),
        nothing_found(),
        *prefill(stack, resume(config, prompt, 0)),
        hand_over(stack, 0, prompt),
        *decode(stack, prompt, answer),
        leave(stack, prompt, answer),
    )
    return Journey("A picture", pixels, overview, steps, stack.tables)


def _lost(stack: Stack, tokens: int, answer: int) -> Journey:
    half = answer // 2
    overview = (
        f"<b>A decode worker is killed</b> after {counted(half)} of the answer. What was in its memory is lost, "
        "but not what was handed to it: another worker takes the request up, and the client notices only a pause."
    )
    killed = Step(
        "decode",
        "is killed",
        f"{counted(half)} are already with the client. Pages and windows of the sequence die with the process.",
        kept=(Kept("pages", 0),),
        fault=True,
    )
    taken_up = Step(
        "decode",
        "takes it up again",
        "What the prefill handed over is kept until the answer has ended. Another worker begins with the same bytes "
        "and the same seed; what the client has is fed again and stands.",
        (handed(stack, 0, tokens),),
        kept=(Kept("pages", stack.pages(0, tokens), IN_USE),),
    )
    steps = (
        *arrival(tokens),
        nothing_found(),
        *prefill(stack, resume(stack.config, tokens, 0)),
        hand_over(stack, 0, tokens),
        *decode(stack, tokens, half),
        killed,
        taken_up,
        *decode(stack, tokens, answer, given=half),
        leave(stack, tokens, answer),
    )
    return Journey("A killed worker", "in mid-answer", overview, steps, stack.tables)
