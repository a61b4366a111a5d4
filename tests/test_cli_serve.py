"""``ds41 serve`` as a user meets it: a process that answers the official client, its options, its end."""

import argparse
import errno
import os
import re
import signal
import socket
import subprocess
import sys

import golden_io
import openai
import pytest
import torch

from ds41 import ModelConfig, generate
from ds41.cache import PageLayout
from ds41.chat_format import Message, Turns
from ds41.checkpoint import load_checkpoint
from ds41.cli import main
from ds41.cli_serve import drain_line
from ds41.cli_tiers import store_folder
from ds41.serving import StoreError
from ds41.tokenizer import load_tokenizer

FOLDER = str(golden_io.FOLDER / "tinyC")
SECRETS = {"ann": "ann-secret-0123456789", "bob": "bob-secret-0123456789"}
HELLO = [{"role": "user", "content": "Hello, who is there behind the door?"}]


class Served:
    """The command in a process of its own. lines: of its output so far."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "ds41", "serve", FOLDER, "--port", "0", "--device", "cpu", *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A parent that ignores the interrupt, as some test runners do, would hand that down.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.line = self.process.stdout.readline()
        self.url = re.search(r"http://\S+/v1", self.line or self.process.stderr.read())[0]

    def client(self, secret: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url, api_key=secret, max_retries=0, timeout=60)

    def end(self) -> tuple[int, str, str]:
        """Status, and what more was written to stdout and stderr."""
        out, err = self.process.communicate(timeout=60)
        return self.process.returncode, out, err


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("".join(f"{tenant} {secret}\n" for tenant, secret in SECRETS.items()))
    path.chmod(0o644)
    return path


def ask(client: openai.OpenAI, messages=HELLO, **options):
    options = {"max_tokens": 3, "temperature": 0, **options}
    return client.chat.completions.create(model="tinyC", messages=messages, **options)


def test_a_process_answers_as_the_model_does_and_ends_in_order(keys, tmp_path):
    store = str(tmp_path / "store")
    served = Served("--api-keys", str(keys), "--store", store, "--rows", "2", "--max-messages", "3", "--drain", "20")
    try:
        assert re.fullmatch(r"ds41: http://127\.0\.0\.1:\d+/v1 answers for model tinyC, to 2 keys\n", served.line)
        ann, bob = (served.client(secret) for secret in SECRETS.values())
        first = ask(ann)
        model, tokenizer = load_checkpoint(FOLDER, dtype=torch.float32), load_tokenizer(FOLDER)
        turns = Turns(tokenizer, model.config)
        ids = turns.messages([Message("user", (HELLO[0]["content"],))])
        expected = list(generate(model, ids, 3, temperature=0, decoder="bounded"))
        assert first.choices[0].message.content == tokenizer.decode(expected, skip_special_tokens=False)
        assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (len(ids), len(expected))
        # The same again is found, and by nobody else.
        assert ask(ann).usage.prompt_tokens_details.cached_tokens >= len(ids) - 1
        assert ask(bob).usage.prompt_tokens_details.cached_tokens == 0
        with pytest.raises(openai.BadRequestError, match="has 4 messages; expected up to 3"):
            ask(ann, HELLO * 4)
        with pytest.raises(openai.BadRequestError, match="nothing here can see"):
            ask(ann, [{"role": "user", "content": [_picture()]}])
        with pytest.raises(openai.AuthenticationError):
            ask(served.client())
        stream = ask(ann, stream=True, max_tokens=8)
        pieces = [next(stream)]
        served.process.send_signal(signal.SIGTERM)
        pieces += stream
        assert pieces[-1].choices[0].finish_reason in ("stop", "length")
        # Connections that the clients keep open do not hold it up.
        status, out, err = served.end()
    finally:
        served.process.kill()
    assert (status, out) == (0, "")
    exposed, blind, *draining = err.splitlines()
    assert re.fullmatch(r"ds41: \S+keys holds keys and others may read or change it; chmod 600 it", exposed)
    assert re.fullmatch(r"ds41: pictures are refused: \S+ holds no vision part", blind)
    # The stream may have been computed to its end before the signal came.
    assert draining in ([], ["ds41: 1 answer is running and has 20 s; interrupt again to end it now"])
    assert not any(secret in served.line + err for secret in SECRETS.values())


def _picture() -> dict:
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixel}"}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "serve takes FOLDER or --preset NAME; it was given neither"),
        ((FOLDER, "--preset", "nano"), "it was given both"),
        (("/no/such/folder",), "/no/such/folder is not a folder"),
        ((FOLDER, "--store", "/proc/none"), "/proc/none cannot be the store's folder: No such file"),
        ((FOLDER, "--host", "0.0.0.0"), "host '0.0.0.0' can be reached from other machines; give --api-keys FILE"),
        ((FOLDER, "--host", "::"), "can be reached from other machines"),
        ((FOLDER, "--host", ""), "can be reached from other machines"),
        ((FOLDER, "--host", "no.such.host.invalid"), "'no.such.host.invalid' and port 0 are no address"),
        ((FOLDER, "--port", "70000"), "--port is 70000; expected 0 to 65535"),
        ((FOLDER, "--api-keys", "/no/such/file"), "/no/such/file cannot be read: No such file"),
        ((FOLDER, "--rows", "0"), "--rows is 0; expected 1 or more"),
        ((FOLDER, "--decode-workers", "0"), "--decode-workers is 0"),
        ((FOLDER, "--vision-workers", "-1"), "--vision-workers is -1"),
        ((FOLDER, "--vision-workers", "1"), "vision"),
        ((FOLDER, "--drain", "nan"), "--drain is nan"),
        ((FOLDER, "--max-running", "0"), "limit running is 0; expected a positive number"),
        ((FOLDER, "--max-body-s", "inf"), "limit body_s is inf"),
        ((FOLDER, "--max-body-bytes", "lots"), "'lots' is no size"),
        ((FOLDER, "--store", "x", "--no-store"), "--store needs the store that --no-store leaves out"),
        ((FOLDER, "--pool", "memory"), "pool is 'memory'; expected host, none, or a URL"),
        ((FOLDER, "--ray", "--draft", "optimum"), "--draft optimum times this process's steps"),
        (("--preset", "mini", "--ray"), "preset mini has random weights"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    port = () if "--port" in arguments else ("--port", "0")
    try:
        status = main(["serve", "--device", "cpu", *port, *arguments])
    except SystemExit as stop:
        status = stop.code
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("ds41")


def test_a_port_that_is_taken_is_told_before_the_weights_are_read(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["serve", "/no/such/folder", "--port", str(port)]) == 2
    assert f"nothing can listen on 127.0.0.1, port {port}: Address already in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("running", "seconds", "line"),
    [
        (0, 30.0, ""),
        (1, 0.0, ""),
        (1, 30.0, "ds41: 1 answer is running and has 30 s; interrupt again to end it now\n"),
        (2, 0.5, "ds41: 2 answers are running and have 0.5 s; interrupt again to end them now\n"),
    ],
)
def test_who_interrupts_hears_what_still_runs(running, seconds, line):
    assert drain_line(running, seconds) == line


@pytest.mark.parametrize("given", [True, False])
def test_a_store_that_cannot_be_written_is_told_in_words(monkeypatch, tmp_path, given):
    def denied(**options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.TemporaryFile", denied)
    options = argparse.Namespace(store=str(tmp_path) if given else None)
    hint = "" if given else "; give --store FOLDER or --no-store"
    with pytest.raises(StoreError, match=f"cannot be the store's folder: Permission denied{hint}$"):
        store_folder(options, PageLayout.of(ModelConfig.nano()))


@pytest.mark.parametrize("arguments", [("--port", "80000"), ("--max-running", "0"), ("--api-keys", "/no/such/file")])
def test_errors_of_usage_do_not_wait_for_torch(arguments):
    code = "import sys; from ds41.cli import main; status = main(sys.argv[1:]); "
    command = [sys.executable, "-c", code + "sys.exit(3 if 'torch' in sys.modules else status)", "serve", FOLDER]
    assert subprocess.run([*command, *arguments], capture_output=True, timeout=60).returncode == 2
