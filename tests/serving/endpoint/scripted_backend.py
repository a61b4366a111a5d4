"""A stand-in for the pools: answers that were written beforehand, with pauses, errors and refusals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ds41 import ModelConfig
from ds41.serving.counters import Counters
from ds41.serving.pools.requests import Answer, Request
from ds41.serving.turn import TurnReport
from ds41.tokenizer import byte_tokenizer
from ds41.vision import load_image

TOKENIZER = byte_tokenizer()


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text).ids


@dataclass(frozen=True)
class Script:
    """One answer. pause_s: before each token. error: instead of the end. refusal: instead of an answer."""

    tokens: tuple[int, ...] = tuple(ids("Hello, world."))
    pause_s: float = 0.0
    error: BaseException | None = None
    refusal: BaseException | None = None
    together: int = 1

    @classmethod
    def of(cls, text: str, **options) -> Script:
        return replace(cls(**options), tokens=tuple(ids(text)))


class ScriptedBackend:
    """Answers each request by what ``script`` makes of it; remembers the requests and their answers."""

    def __init__(self, script: Callable[[Request], Script] | Script | None = None, max_tokens: int = 2048) -> None:
        self.script: Callable[[Request], Script] | Script = Script() if script is None else script
        self.config, self.max_tokens = ModelConfig.nano(), max_tokens
        self.answers: list[Answer] = []
        self.live = {"vision": 1, "prefill": 1, "decode": 2}
        self._known: dict[str, list[Sequence[int]]] = {}
        self._engine = Counters(("turns",))

    @property
    def requests(self) -> list[Request]:
        return [answer.request for answer in self.answers]

    def submit(self, request: Request) -> Answer:
        script = self.script(request) if callable(self.script) else self.script
        if script.refusal is not None:
            raise script.refusal
        for picture in request.pictures:
            load_image(picture)
        if len(request.ids) + request.max_new_tokens > self.max_tokens:
            raise ValueError(f"{len(request.ids)} and {request.max_new_tokens} tokens; expected {self.max_tokens}")
        answer = Answer(request)
        answer.report.prompt_tokens = len(request.ids)
        answer.report.prefill = TurnReport(resident_tokens=self._hit(request))
        self._engine.add("turns")
        self.answers.append(answer)
        stop = threading.Event()
        answer.on_cancel(stop.set)
        threading.Thread(target=self._say, args=(answer, script, stop), daemon=True).start()
        return answer

    def health(self) -> dict[str, dict[str, int]]:
        running = sum(not answer.ended for answer in self.answers)
        return {
            name: {"workers": 2, "live": live, "running": running if name == "decode" else 0, "waiting": 0}
            for name, live in self.live.items()
        }

    def counters(self) -> dict[str, Counters]:
        return {"engine": self._engine}

    def _hit(self, request: Request) -> int:
        known = self._known.setdefault(request.tenant, [])
        hit = max((_common(request.ids, one) for one in known), default=0)
        known.append(request.ids)
        return hit

    def _say(self, answer: Answer, script: Script, stop: threading.Event) -> None:
        tokens = script.tokens[: answer.request.max_new_tokens]
        for place in range(0, len(tokens), script.together):
            if stop.wait(script.pause_s) if script.pause_s else stop.is_set():
                answer.end("cancelled")
                return
            answer.add(tokens[place : place + script.together])
        if script.error is not None:
            answer.end("failed", script.error)
        else:
            answer.end("stop" if len(tokens) == len(script.tokens) else "length")


def until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Wait for a condition, and say whether it came."""
    latest = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > latest:
            return False
        time.sleep(0.005)
    return True


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))
