"""``ds41 serve`` in a process of its own, and clients that use it: what each asks, and what it is told."""

from __future__ import annotations

import random
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import openai

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serving" / "endpoint"))

from hostile import MODEL
from image_files import data_url, png

LIMITS = {
    "body_bytes": 2**20, "body_s": 1.0, "header_s": 1.0, "picture_bytes": 2**17, "pictures": 3, "messages": 100,
    "json_values": 2**16, "answer_tokens": 512,
}  # fmt: skip
CONTEXT, LEFT_TOKENS = 2048, 256
TENANTS = ("ann", "bob", "cid")
ALONE = "alone"
# Of every twenty requests; the rest of the list repeats.
KINDS = (
    "whole", "stream", "turn", "cancel", "turn", "stream", "whole", "wrong key", "turn", "picture",
    "whole", "stream", "turn", "cancel", "whole", "stream", "turn", "whole", "cancel", "stream",
)  # fmt: skip
_WORDS = (
    "def", "class", "import", "return", "self", "for", "in", "range", "print", "open", "path", "with", "as", "try",
)  # fmt: skip


@dataclass
class Done:
    """One request: what was asked, by whom, and what came. error: the status, or the exception's name."""

    kind: str
    client: int
    messages: list[dict]
    text: str = ""
    finish: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0
    first_s: float | None = None
    error: str = ""


@dataclass
class Load:
    """The clients' shared books. quarters: the server's resident bytes."""

    server: Server
    requests: int
    done: list[Done] = field(default_factory=list)
    quarters: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, done: Done) -> None:
        with self.lock:
            self.done.append(done)
            if len(self.done) * 4 // self.requests > len(self.quarters):
                self.quarters.append(self.server.resident_bytes())


class Server:
    """``ds41 serve`` in a process of its own, on a free port."""

    def __init__(self, folder: Path) -> None:
        self.keys = {tenant: secrets.token_urlsafe(24) for tenant in (*TENANTS, ALONE)}
        keys = folder / "keys"
        keys.touch(mode=0o600)
        keys.write_text("".join(f"{tenant} {secret}\n" for tenant, secret in self.keys.items()))
        limits = [f"--max-{name.replace('_', '-')}={value}" for name, value in LIMITS.items()]
        command = [sys.executable, "-m", "ds41", "serve", "--preset", MODEL, "--device", "cpu", "--port", "0"]
        command += ["--api-keys", str(keys), "--store", str(folder / "store"), "--context", str(CONTEXT), *limits]
        self._errors = (folder / "errors").open("w+")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._errors, text=True)
        line = self._process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", line)
        if found is None:
            self._process.wait()
            raise RuntimeError(f"the server did not start: {self.errors()}")
        self.port, self.url = int(found[1]), found[0]

    def client(self, key: str) -> openai.OpenAI:
        # There is no TLS here, and to read the system's certificates takes longer than most requests.
        http = openai.DefaultHttpxClient(verify=False)
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=300, http_client=http)

    def counted(self) -> Counter[str]:
        """Tokens by kind, as the server counts them."""
        with self.client(self.keys[ALONE]) as client:
            text = client.with_options(base_url=self.url.removesuffix("/v1")).get("/metrics", cast_to=str)
        return Counter({kind: int(number) for kind, number in re.findall(r'tokens_total{kind="(\w+)"} (\d+)', text)})

    def resident_bytes(self) -> int:
        text = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) * 1024

    def end(self) -> int:
        """Tell it to end; its exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=60)

    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def errors(self) -> str:
        """What it has written to stderr."""
        self._errors.seek(0)
        return self._errors.read()


def ask(client: openai.OpenAI, done: Done, tokens: int, stream: bool) -> None:
    """Send a request and write down what comes."""
    options = {"model": MODEL, "messages": done.messages, "max_tokens": tokens, "temperature": 0}
    began = time.perf_counter()
    try:
        if stream:
            _read_stream(client, done, options, began)
        else:
            answer = client.chat.completions.create(**options)
            _finish(done, answer.choices[0].message.content, answer.choices[0].finish_reason, answer.usage)
    except openai.APIStatusError as error:
        done.error = str(error.status_code)
    except openai.APIError as error:
        done.error = type(error).__name__
    done.seconds = time.perf_counter() - began


def _read_stream(client: openai.OpenAI, done: Done, options: dict, began: float) -> None:
    pieces, finish, usage = [], "", None
    with client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}) as chunks:
        for chunk in chunks:
            usage = chunk.usage or usage
            if not chunk.choices:
                continue
            if chunk.choices[0].delta.content:
                done.first_s = done.first_s or time.perf_counter() - began
                pieces.append(chunk.choices[0].delta.content)
            finish = chunk.choices[0].finish_reason or finish
            if done.kind == "cancel" and len(pieces) == 3:
                done.text, done.finish = "".join(pieces), "left"
                return
    _finish(done, "".join(pieces), finish, usage)


def _finish(done: Done, text: str, finish: str, usage: openai.types.CompletionUsage) -> None:
    done.text, done.finish = text, finish
    done.prompt_tokens, done.completion_tokens = usage.prompt_tokens, usage.completion_tokens
    done.cached_tokens = usage.prompt_tokens_details.cached_tokens


def run_client(load: Load, number: int, requests: int, tokens: int, seed: int) -> None:
    """One client's requests, one after the other."""
    chance = random.Random(f"{seed} {number}")
    talk: list[dict] = []
    key = load.server.keys[TENANTS[number % len(TENANTS)]]
    with load.server.client(key) as client, load.server.client(secrets.token_urlsafe(24)) as stranger:
        for turn in range(requests):
            kind = KINDS[(turn + 3 * number) % len(KINDS)]
            words = " ".join(chance.choices(_WORDS, k=chance.randint(4, 24)))
            # What two requests of a tenant have in common at their beginnings is less than a page.
            message = {"role": "user", "content": f"{number}.{turn} {words}"}
            if kind == "picture":
                picture = data_url(png(chance.randint(16, 90), chance.randint(16, 90)))
                message["content"] = [
                    {"type": "text", "text": message["content"]},
                    {"type": "image_url", "image_url": {"url": picture}},
                ]
            done = Done(kind, number, [*talk, message] if kind == "turn" else [message])
            # One that is left has to be long, or the server has told all of it before.
            most = LEFT_TOKENS if kind == "cancel" else tokens
            ask(stranger if kind == "wrong key" else client, done, most, kind in ("stream", "cancel", "turn"))
            if kind == "turn" and not done.error:
                talk = [*done.messages, {"role": "assistant", "content": done.text}]
            load.note(done)
