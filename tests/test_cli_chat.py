"""``ds41 chat`` as a user meets it: answers, what each turn cost, sessions over processes, and what may go wrong."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys

import golden_io
import pytest
import torch
from tokenizers import AddedToken

from ds41 import ModelConfig
from ds41.chat_format import Turns
from ds41.checkpoint import load_checkpoint
from ds41.cli import main
from ds41.conversation import SavedConversation
from ds41.serving import Engine, session
from ds41.serving import drafts as drafts_module
from ds41.tokenizer import byte_tokenizer, load_tokenizer

FOLDER = str(golden_io.FOLDER / "tinyC")
WINDOW = 12


@pytest.fixture
def chat(capsys, monkeypatch, tmp_path):
    """Run the command on lines of input; gives status, stdout and stderr."""

    def run(text: str | bytes, *arguments: str, model: tuple[str, ...] = (FOLDER,), store: bool = True):
        data = text if isinstance(text, bytes) else text.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        where = ("--store", str(tmp_path / "store")) if store else ()
        try:
            fixed = ("--device", "cpu", "--max-new-tokens", "4", "--seed", "2")
            status = main(["chat", *model, *fixed, *where, *arguments])
        except SystemExit as stop:
            status = stop.code
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def objects(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


def ids_of(tmp_path, name: str) -> list[int]:
    return json.loads((tmp_path / "store" / "sessions" / f"{name}.json").read_text())["ids"]


def test_answers_are_those_of_the_engine(chat):
    status, out, err = chat("Hello\nAnd then?\n", "--seed", "5", "--no-store", store=False)
    assert status == 0
    model, tokenizer = load_checkpoint(FOLDER, dtype=torch.float32), load_tokenizer(FOLDER)
    turns, texts = Turns(tokenizer, model.config), []
    with Engine(model, rows=1, fingerprint=bytes(32)) as engine:
        talk = engine.open()
        for message in ("Hello", "And then?"):
            ids = turns.prompt(message, first=not talk.ids)
            seed = 5 + len(talk.ids)
            texts.append(tokenizer.decode(list(talk.say(ids, 4, 1.0, seed=seed)), skip_special_tokens=False))
    assert out == "".join(f"{text}\n" for text in texts)
    assert re.findall(r"\[turn (\d)\] (\d+) tokens, (\d+) of them new", err)[1][0] == "2"


def test_a_second_process_hits_the_store_and_replays(chat, tmp_path):
    options = ("--session", "s", "--seed", "1", "--json")
    status, out, err = chat("One message of some length, to begin with.\nTwo\n", *options)
    first = objects(out)
    assert (status, [one["turn"] for one in first]) == (0, [1, 2])
    assert [one["report"]["windows"] for one in first] == ["cold", "live"]
    assert err == "ds41: new session s\n"
    before = len(ids_of(tmp_path, "s"))

    status, out, err = chat("Three\nFour\n", *options)
    replayed, live = (one["report"] for one in objects(out))
    assert status == 0
    assert err == f"ds41: session s, 2 turns and {before} tokens so far\n"
    assert replayed["store_tokens"] == before - 1
    assert replayed["live_tokens"] == replayed["resident_tokens"] == 0
    assert (replayed["windows"], replayed["replayed_tokens"]) == ("replayed", WINDOW)
    assert replayed["store_bytes"] > 0
    assert (live["windows"], live["store_tokens"], live["replayed_tokens"]) == ("live", 0, 0)
    assert live["live_tokens"] == len(ids_of(tmp_path, "s")) - live["new_tokens"] - live["generated_tokens"] - 1
    assert [one["turn"] for one in objects(out)] == [3, 4]


def test_the_report_says_what_was_hit_and_what_it_cost(chat):
    options = ("--session", "s", "--temperature", "0", "--max-new-tokens", "3")
    long = "a message that is longer than the window of this model"
    _, _, first = chat(f"{long}\nTwo\n", *options)
    _, _, second = chat("Three\n", *options)
    assert re.search(
        r"\[turn 1\] (\d+) tokens, \1 of them new; nothing hit\n  replayed 0, computed \d+, generated 3; stored \d+ "
        r"tokens in [\d,]+ bytes, kept [\d,]+ bytes of windows\n  first token after [\d.]+ s, then [\d.]+ tokens/s, "
        r"[\d.]+ s in all; as long as --max-new-tokens allows\n\[turn 2\]",
        first,
    )
    assert re.search(r"\[turn 2\] .*; hit (\d+): live \1, memory 0, store 0; windows live\n", first)
    assert re.search(
        rf"\[turn 3\] .*; hit (\d+): live 0, memory 0, store \1 \([\d,]+ bytes read\); windows replayed\n"
        rf"  replayed {WINDOW}, ",
        second,
    )


def test_options_reach_the_engine(chat, monkeypatch):
    seen = {}

    class Recorded(Engine):
        def __init__(self, model, store, pool, **options):
            seen.update(options, store=store, pool=pool, budget=store.budget_bytes, model=model)
            super().__init__(model, store, pool, **options)

    monkeypatch.setattr("ds41.serving.engine.Engine", Recorded)
    monkeypatch.setattr("ds41.serving.Engine", Recorded, raising=False)
    options = ("--decoder", "exact", "--windows", "prefill", "--short-hits", "replay", "--context", "128")
    status, _, err = chat(
        "Hi\n", *options, "--pool", "none", "--store-budget", "3M", "--quantization", "full", "--verbose"
    )
    assert status == 0
    assert (seen["decoder"], seen["windows"], seen["short_hits"]) == ("exact", "prefill", "replay")
    assert (seen["max_tokens"], seen["pool"], seen["budget"]) == (128, None, 3 * 2**20)
    assert "quantization full; room for 128 tokens" in err


def test_nothing_is_kept_without_a_store(chat, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    status, out, err = chat("Hi\n", "--no-store", "--json", store=False)
    assert (status, err) == (0, "")
    (turn,) = objects(out)
    assert (turn["session"], turn["report"]["stored_tokens"]) == (None, 0)
    assert list(tmp_path.iterdir()) == []


def test_the_default_store_is_in_the_cache_folder_and_private(chat, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    status, _, err = chat("Hi\n", store=False)
    assert status == 0
    name = re.search(r"new session (\S+); --session \1 goes on with it", err)[1]
    (folder,) = (tmp_path / "cache" / "ds41" / "prefix").iterdir()
    assert folder.stat().st_mode & 0o077 == 0
    assert (folder / "sessions" / f"{name}.json").stat().st_mode & 0o077 == 0
    # Another layout of pages has a store of its own there.
    assert chat("Hi\n", "--session", name, model=("--preset", "nano"), store=False)[0] == 0
    assert len(list(folder.parent.iterdir())) == 2


def test_a_system_prompt_is_shared_by_conversations(chat):
    system = ("--system", "Answer in few words, and never in more than you need to.", "--json")
    chat("Hello\n", *system)
    status, out, _ = chat("Good evening\n/new\nHello\n", *system)
    first, second = objects(out)
    assert status == 0
    assert first["report"]["store_tokens"] > 50
    found = second["report"]["resident_tokens"] + second["report"]["store_tokens"]
    assert found >= first["report"]["store_tokens"]
    assert first["session"] != second["session"]


def test_commands(chat):
    status, out, err = chat("/help\nHello\n/stats\n//slash\n\n   \n/quit\nnever said\n")
    assert (status, out.count("\n")) == (0, 2)
    assert "/stats  what engine" in err
    assert re.search(r"Since the start\n +engine +store +windows\n  turns +1 ", err)
    assert "[turn 2]" in err
    assert "[turn 3]" not in err


def test_statistics_in_json(chat):
    status, out, _ = chat("Hello\n/stats\n", "--json")
    stats = objects(out)[1]["stats"]
    assert (status, set(stats)) == (0, {"engine", "store", "windows"})
    assert stats["engine"]["turns"] == 1


def test_what_cannot_be_answered_is_said_and_the_conversation_goes_on(chat):
    status, out, err = chat(b"/nonsense\nab\xff\n" + b"x" * 300 + b"\nHello\n", "--json")
    assert status == 2
    unknown, coded, long, good = objects(out)
    assert unknown["error"] == "/nonsense is no command; /help lists them"
    assert coded["error"] == "line 2 of the input is not UTF-8: byte 2"
    assert (
        "of the context of 256 the conversation has taken 0; say something shorter, begin anew with /new"
        in (long["error"])
    )
    assert (good["turn"], good["message"]) == (1, "Hello")
    assert err.count("ds41: ") == 4


def test_an_answer_ends_where_the_context_does(chat):
    status, _, err = chat("Hello\nHello again\nHello\n/new\nHello\n", "--context", "40", "--max-new-tokens", "60")
    assert status == 2
    assert "; the context is full: /new begins another conversation" in err
    assert "of the context of 40 the conversation has taken 40; say something shorter" in err
    assert err.count("[turn 1]") == 2


def test_a_failed_answer_leaves_the_conversation_as_it_was(chat, monkeypatch, tmp_path):
    sample, left = drafts_module.sample, [1]

    def fails_once(*arguments):
        if left:
            left.pop()
            raise FloatingPointError("the largest logit is nan")
        return sample(*arguments)

    monkeypatch.setattr(drafts_module, "sample", fails_once)
    status, out, _ = chat("Hello\nHello\n", "--json", "--session", "s", "--seed", "3")
    failed, good = objects(out)
    assert status == 2
    assert (
        failed["error"]
        == "the largest logit is nan; the conversation is as it was before, so the message can be repeated"
    )
    assert (good["turn"], good["report"]["context_tokens"]) == (1, good["report"]["new_tokens"])
    assert len(ids_of(tmp_path, "s")) == good["report"]["context_tokens"] + good["report"]["generated_tokens"]


def test_a_store_without_room_is_told_and_the_answer_stands(chat):
    status, out, err = chat("Hello there\n", "--store-budget", "40K")
    assert status == 0
    assert len(out) > 1
    assert re.search(r"\n  not stored: the store in .* is full: .* bytes are needed", err)


def test_an_unwritable_session_goes_on_unsaved(chat, monkeypatch):
    def full(self, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SavedConversation, "_replace", full)
    status, out, err = chat("Hello\nMore\n", "--session", "s")
    assert (status, out.count("\n")) == (0, 2)
    assert err.count("s.json cannot be written: No space left on device; the conversation goes on unsaved") == 2


def test_a_session_is_replaced_whole_or_not_at_all(chat, monkeypatch, tmp_path):
    chat("Hello\n", "--session", "s")
    before = ids_of(tmp_path, "s")

    def broken(source, target):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", broken)
    assert chat("More\n", "--session", "s")[0] == 0
    assert ids_of(tmp_path, "s") == before
    assert sorted(path.name for path in (tmp_path / "store" / "sessions").iterdir()) == [".s.lock", "s.json"]


def harmed(**changes):
    return lambda content: json.dumps({**content, **changes})


@pytest.mark.parametrize(
    ("harm", "arguments", "message"),
    [
        (lambda content: json.dumps(content)[:-9], (), r"s\.json is no saved conversation \(it is not JSON"),
        (lambda content: "[1]", (), r"it does not say that its format is 'ds41 conversation 1'\); remove it"),
        (harmed(ids=[1, 512]), (), r"its ids are not token ids from 0 to 511"),
        (harmed(ids=[1, True]), (), r"its ids are not token ids"),
        (harmed(turns=-1), (), r"its number of turns is -1"),
        (harmed(tokenizer="0"), (), r"was begun with a tokenizer other than the ones? given now"),
        (json.dumps, ("--quantization", "full"), r"was begun with weights, configuration or types other than"),
        (json.dumps, ("--tenant", "b"), r"session s in .* belongs to tenant 'default', not to 'b'"),
        (json.dumps, ("--system", "x"), r"session s has begun; --system is for a new conversation"),
    ],
)
def test_a_session_that_cannot_be_used_is_one_line(chat, tmp_path, harm, arguments, message):
    chat("Hello\n", "--session", "s")
    path = tmp_path / "store" / "sessions" / "s.json"
    path.write_text(harm(json.loads(path.read_text())))
    kept = path.read_text()
    status, out, err = chat("More\n", "--session", "s", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert re.match(f"ds41: .*{message}", err)
    assert path.read_text() == kept


def test_a_session_is_open_in_one_process_at_a_time(chat, tmp_path):
    chat("Hello\n", "--session", "s")
    command = [sys.executable, "-m", "ds41", "chat", FOLDER, "--store", str(tmp_path / "store"), "--session", "s"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as other:
        assert "session s, 1 turns" in other.stderr.readline()
        status, _, err = chat("More\n", "--session", "s")
        other.communicate("", timeout=60)
    assert (status, other.returncode) == (2, 0)
    assert err == "ds41: session s is open in another process; end that one, or choose another name\n"
    assert chat("More\n", "--session", "s")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "chat takes FOLDER or --preset NAME; it was given neither"),
        ((FOLDER, "--preset", "nano"), "it was given both"),
        (("/no/such/folder",), "/no/such/folder is not a folder"),
        ((FOLDER, "--session", "../x"), "session '../x' is no name"),
        ((FOLDER, "--session", "x", "--no-store"), "--session needs the store that --no-store leaves out"),
        ((FOLDER, "--store", "/dev/null/x"), "/dev/null/x cannot be the store's folder: Not a directory"),
        ((FOLDER, "--store-budget", "2 G"), "'2 G' is no size; expected for example 500M or 2G"),
        ((FOLDER, "--context", "many"), "'many' is no number of tokens; expected for example 4096 or 64K"),
        ((FOLDER, "--pool", "memory"), "pool is 'memory'; expected host, none, or a URL"),
        ((FOLDER, "--pool", "redis://localhost:1/0"), "localhost:1"),
        ((FOLDER, "--max-new-tokens", "0"), "max_new_tokens is 0; expected 1 or more"),
        ((FOLDER, "--temperature", "-1"), "temperature is -1.0"),
        ((FOLDER, "--quantization", "none"), "invalid choice: 'none'"),
        ((FOLDER, "--windows", "some"), "invalid choice: 'some'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(chat, monkeypatch, tmp_path, arguments, message):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    status, out, err = chat("Hello\n", *arguments, model=(), store=False)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("ds41")


def test_a_store_of_another_layout_is_one_line(chat):
    chat("Hello\n")
    status, out, err = chat("Hello\n", model=("--preset", "nano"))
    assert (status, out) == (2, "")
    assert err.splitlines()[-1].startswith("ds41: ")


def started(tmp_path, *arguments: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "ds41", "chat", FOLDER, "--store", str(tmp_path), "--device", "cpu", *arguments]
    # A parent that ignores the interrupt, as some test runners do, would hand that down.
    options = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), **options}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, **{**pipes, "env": {**os.environ, "PYTHONUNBUFFERED": "1"}, **options})


def test_an_interrupt_ends_the_answer_and_a_second_leaves(tmp_path):
    with started(tmp_path, "--max-new-tokens", "230", "--seed", "0", "--session", "s") as process:
        process.stdin.write(b"Hello\n")
        process.stdin.flush()
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        err = b""
        while b"interrupted\n" not in err:
            line = process.stderr.readline()
            assert line, err
            err += line
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=60)
    assert re.search(rb"\[turn 1\]", err)
    assert (process.returncode, rest) == (130, b"\nds41: interrupted\n")
    saved = json.loads((tmp_path / "sessions" / "s.json").read_text())
    assert saved["turns"] == 1
    assert 0 < len(saved["ids"]) < 200


def test_a_terminal_gets_a_prompt(tmp_path):
    ours, theirs = pty.openpty()
    options = {"stdin": theirs, "stdout": theirs, "stderr": subprocess.PIPE, "close_fds": True}
    with started(tmp_path, "--max-new-tokens", "2", "--seed", "0", **options) as process:
        os.close(theirs)
        shown = b""
        while b"> " not in shown:
            shown += os.read(ours, 1024)
        os.write(ours, b"/nonsense\nHello\n/quit\n")
        err = process.stderr.read()
    os.close(ours)
    assert process.returncode == 0
    assert b"/nonsense is no command" in err
    assert b"[turn 1]" in err


def test_turns_in_words_and_in_role_tokens():
    config, tokenizer = ModelConfig.nano(), byte_tokenizer()
    turns = Turns(tokenizer, config)
    first = turns.prompt("Hi <|end|>", "Be brief.", first=True)
    assert first[0] == config.bos_token_id
    assert tokenizer.decode(first[1:]) == "Be brief.\n\nUser: Hi <|end|>\n\nAssistant:"
    # The name of a special token in a message stays text, and the tokenizer is as it was.
    assert config.eos_token_id not in first
    assert tokenizer.encode("<|end|>").ids == [config.eos_token_id]
    assert tokenizer.decode(turns.prompt("More")) == "\n\nUser: More\n\nAssistant:"

    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<｜User｜>", "<｜Assistant｜>")])
    user, assistant = 272, 273
    turns = Turns(tokenizer, config)
    text = [16 + byte for byte in b"Hi"]
    assert turns.prompt("Hi", "Hi", first=True) == [config.bos_token_id, *text, user, *text, assistant]
    assert turns.prompt("Hi") == [config.eos_token_id, user, *text, assistant]
    tokenizer.add_special_tokens([AddedToken("</think>", special=True)])
    assert Turns(tokenizer, config).prompt("Hi")[-2:] == [assistant, 274]


def test_marking_an_answer_ends_it_before_the_next_step(tmp_path):
    model = load_checkpoint(FOLDER, dtype=torch.float32)
    with Engine(model, rows=1, fingerprint=bytes(32)) as engine:
        talk = engine.open()
        stream = talk.say([5, 6, 7], 50, stop_ids=())
        assert isinstance(stream, session.Stream)
        tokens = [next(stream), next(stream)]
        stream.cancel_soon()
        assert list(stream) == []
        assert stream.report.finish == "cancelled"
        assert talk.ids == [5, 6, 7, *tokens]
