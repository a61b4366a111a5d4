"""Start-up logs: recorded ones read right whatever wraps them, and nothing made of what is not there.

Lines that are not from ``data/engine_logs.json`` are synthetic, written here to have one property each.
"""

import gzip
import io
import json
import os
import random
import tracemalloc
from importlib import resources

import pytest

from ds41.engine_logs import LogError, read_lines, read_log

RECORDED = {
    log["key"]: log
    for log in json.loads(resources.files("ds41").joinpath("data/engine_logs.json").read_text("utf-8"))["logs"]
}
H100 = RECORDED["v41-h100-tp8"]["lines"]
GIB = 2**30


def write(folder, content):
    path = folder / "engine.log"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_every_recorded_log_says_where_it_is_from():
    for log in RECORDED.values():
        assert log["source"].startswith("https://github.com/"), log["key"]
        assert log["wording"] in ("as logged", "quoted")
        assert log["note"]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (
            "v41-h100-tp8",
            {
                "engine": "vllm",
                "version": "0.31.1rc1.dev50+g554340f3d",
                "model": "deepseek-ai/DeepSeek-V4.1-Flash",
                "max_model_len": 262144,
                "kv_cache_dtype": "auto",
                "cache_format": "fp8_ds_mla",
                "index_format": "FP8",
                "tensor_parallel": 8,
                "data_parallel": 1,
                "chunk_tokens": 8192,
                "request_tokens": 262144,
                "concurrency": 34.68,
                "starts": 1,
                "lines": 9,
            },
        ),
        (
            "v41-spark-1m",
            {"engine": "vllm", "max_model_len": 1048576, "request_tokens": 1048576, "concurrency": 3.47, "starts": 1},
        ),
        ("v41-rtx-pro-tp4", {"available": None, "model": None, "request_tokens": 524288, "concurrency": 14.57}),
        ("v4-0731-h100-tp8", {"block_size": 256, "cache_format": "fp8_ds_mla", "request_tokens": None}),
        ("qwen3-235b-vllm", {"model": "/path/to/Qwen3-235B-A22B-FP8", "tensor_parallel": 4, "allocated": None}),
        ("qwen3-235b-sglang", {"engine": "sglang", "tensor_parallel": 4, "available": None}),
        ("llama-8b-vllm-v0", {"engine": "vllm", "request_tokens": 20000, "concurrency": 1.56}),
        ("qwen3.6-35b-vllm", {"kv_cache_dtype": "fp8", "chunk_tokens": 8192, "max_model_len": 131072}),
        ("deepseek-v3-sglang", {"engine": "sglang", "available": None, "allocated": None}),
    ],
)
def test_recorded_logs_are_read(key, expected):
    log = read_lines(RECORDED[key]["lines"])
    assert {name: getattr(log, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("key", "tokens", "gib"),
    [
        ("v41-h100-tp8", 9_092_381, 29.14),
        ("v41-spark-300k", 3_625_526, 29.72),
        ("v41-spark-16k-chunk", 2_103_679, 26.44),
        ("qwen3-235b-vllm", 178_880, 8.11),
        ("qwen3-235b-sglang", 367_404, 16.46),
        ("llama-8b-sglang", 442_750, 54.04),
        ("llama-8b-vllm-v0", 1952 * 16, 3.81),
    ],
)
def test_recorded_sizes(key, tokens, gib):
    log = read_lines(RECORDED[key]["lines"])
    assert log.tokens.smallest == log.tokens.largest == tokens
    assert (log.available or log.allocated).smallest == pytest.approx(gib * GIB)


def coloured(lines):
    return "\n".join(f"\x1b[36m{line[:20]}\x1b[0m{line[20:]}\x1b]0;title\x07" for line in lines).encode()


def docker(lines):
    rows = ({"log": f"{line}\n", "stream": "stderr", "time": "2026-10-07T21:14:00.1Z"} for line in lines)
    return "\n".join(json.dumps(row) for row in rows).encode()


def among_noise(lines):
    """Kubernetes' prefix, a progress bar's carriage returns and bytes that are no text."""
    bar = b"Loading:  50%|xx  | 1/2\rLoading: 100%|xxxx| 2/2\r"
    return b"\n".join(b"2026-10-07T21:14:00Z stderr F \xff\xfe\x80" + bar + line.encode() for line in lines)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda lines: "\n".join(lines).encode(),
        lambda lines: "\r\n".join(lines).encode(),
        lambda lines: "\n".join(lines).encode("utf-16"),
        lambda lines: "\ufeff".encode("utf-16-be") + "\n".join(lines).encode("utf-16-be"),
        lambda lines: gzip.compress("\n".join(lines).encode()),
        coloured,
        docker,
        among_noise,
    ],
    ids=["plain", "crlf", "utf16", "utf16be", "gzip", "coloured", "docker", "noise"],
)
def test_what_wraps_a_log_does_not_matter(tmp_path, wrap):
    plain = read_lines(H100).found()
    found = read_log(write(tmp_path, wrap(H100))).found()
    assert {**found, "lines": 0} == {**plain, "lines": 0}


def test_a_log_without_line_ends_is_read_in_pieces(tmp_path):
    # Synthetic: the sizes stand behind 200,000 characters of one line, at every offset against a piece's end.
    line = "Available KV cache memory: 29.14 GiB GPU KV cache size: 9,092,381 tokens"
    for shift in range(0, 80, 7):
        log = read_log(write(tmp_path, "x" * ((1 << 17) - shift) + line + "y" * 70_000))
        assert log.tokens.smallest == 9_092_381
        assert log.available.smallest == pytest.approx(29.14 * GIB)


def test_a_long_log_is_streamed(tmp_path):
    # Synthetic: 16 MB of what a server prints while it serves, then nothing more of interest.
    path = tmp_path / "engine.log"
    noise = 'INFO:     127.0.0.1:59390 - "GET /metrics HTTP/1.1" 200 OK\n' * 1000
    with path.open("w") as file:
        file.write("\n".join(H100) + "\n")
        for _ in range(270):
            file.write(noise)
    tracemalloc.start()
    log = read_log(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 15e6
    assert peak < 2e6
    assert log.lines == 270_000 + len(H100)
    assert log.tokens.smallest == 9_092_381


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_pipe_is_read_once(pack):
    reading, writing = os.pipe()
    with open(writing, "wb") as file:
        file.write(pack("\n".join(H100).encode()))
    try:
        assert read_log(f"/dev/fd/{reading}").found() == read_lines(H100).found()
    finally:
        os.close(reading)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_a_dash_is_standard_input(monkeypatch, pack):
    given = io.BufferedReader(io.BytesIO(pack("\n".join(H100).encode())))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(given))
    assert read_log("-").found() == read_lines(H100).found()
    assert not given.closed
    with pytest.raises(LogError, match="standard input is empty"):
        read_log("-")


def test_a_truncated_log_keeps_what_was_whole(tmp_path):
    text = "\n".join(H100)
    cut = text.index("9,092,381") + 3
    log = read_log(write(tmp_path, text[:cut]))
    assert log.tokens is None
    assert log.available.smallest == pytest.approx(29.14 * GIB)


def test_ranks_are_told_apart_and_the_smallest_counts():
    # Synthetic: two engines with two workers each, and lines in the order of a busy machine.
    log = read_lines(
        [
            "(Worker_DP0_TP0 pid=1) INFO Available KV cache memory: 30.00 GiB",
            "(Worker_DP1_TP0 pid=3) INFO Available KV cache memory: 29.50 GiB",
            "(EngineCore_DP0 pid=9) INFO GPU KV cache size: 1,000,000 tokens",
            "(Worker_DP1_TP1 pid=4) INFO Available KV cache memory: 31.00 GiB",
            "(EngineCore_DP1 pid=8) INFO GPU KV cache size: 900,000 tokens",
        ]
    )
    assert (log.available.smallest, log.available.largest, log.available.count) == (29.5 * GIB, 31 * GIB, 3)
    assert (log.tokens.smallest, log.tokens.largest, log.tokens.count) == (900_000, 1_000_000, 2)
    assert log.starts == 1


def test_of_several_starts_the_last_whole_one_counts():
    second = [line.replace("29.14", "14.57").replace("9,092,381", "4,546,190") for line in H100]
    both = read_lines([*H100, *second])
    assert both.tokens.smallest == 4_546_190
    assert both.available.smallest == pytest.approx(14.57 * GIB)
    assert both.starts == 2
    # A third start that has not come as far as a size changes nothing.
    assert read_lines([*H100, *second, *H100[:3]]).tokens.smallest == 4_546_190


def test_the_drafters_pool_is_not_the_models():
    # Synthetic: SGLang allocates for the draft model after the model itself.
    log = read_lines(
        [
            "[2026-09-11 21:47:44 TP0] KV Cache is allocated. #tokens: 1000, KV size: 4.00 GB",
            "[2026-09-11 21:47:49 TP0] KV Cache is allocated. #tokens: 1000, KV size: 0.07 GB",
            "[2026-09-11 21:47:50 TP0] max_total_num_tokens=1000, chunked_prefill_size=8192, context_len=163840",
        ]
    )
    assert log.allocated.smallest == 4 * GIB
    assert log.tokens.smallest == 1000


@pytest.mark.parametrize(
    ("line", "method"),
    [
        ("non-default args: {'speculative_config': {'method': 'dspark', 'num_speculative_tokens': 5}}", "dspark"),
        ('  --speculative-config \'{"method":"mtp","num_speculative_tokens":1}\'', "mtp"),
        ("server_args=ServerArgs(model_path='x', speculative_algorithm='EAGLE', tp_size=8)", "EAGLE"),
        ("with config: model='x', speculative_config=SpeculativeConfig(method='dspark', model='x')", "dspark"),
        ("with config: model='x', speculative_config=None, tensor_parallel_size=8", None),
    ],
)
def test_drafts_are_noticed(line, method):
    assert read_lines([line]).speculative == method


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", r"engine\.log is empty; expected the start-up log"),
        (gzip.compress(b"", mtime=0), r"engine\.log is empty"),
        (b"hello\nworld\n", "none of 2 lines"),
        (random.Random(0).randbytes(50_000), "tells of a KV cache"),
        (b"\x1f\x8bnot gzip", "cannot read log"),
        (gzip.compress(b"x" * 1000, mtime=0)[:14] + b"\xff" * 40, "cannot read log"),
        (gzip.compress("\n".join(H100).encode(), mtime=0)[:-200], "cannot read log"),
        (b'{"log": 7}\n{"a": {"b": []}}\n{broken\n' + b"[" * 5000, "tells of a KV cache"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, content, reason):
    with pytest.raises(LogError, match=reason):
        read_log(write(tmp_path, content))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(LogError, match=r"cannot read log .*absent\.log: No such file"):
        read_log(tmp_path / "absent.log")
    with pytest.raises(LogError, match="directory"):
        read_log(tmp_path)


def test_numbers_without_end_are_no_numbers():
    # Synthetic: as many digits as a torn file may put together.
    digits = "9" * 500
    log = read_lines(
        [
            f"non-default args: {{'model': 'x', 'tensor_parallel_size': {digits}}}",
            f"Available KV cache memory: {digits}.5 GiB",
            f"GPU KV cache size: {digits} tokens, Maximum concurrency for {digits} tokens per request: {digits}x",
        ]
    )
    assert log.available is None
    assert log.tokens is None
    assert log.concurrency is None
    assert (log.tensor_parallel or 0) < 10**12
