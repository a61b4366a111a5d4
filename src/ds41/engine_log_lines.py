"""The wording of the engines' lines, as patterns.

vLLM's wording has changed: "GPU blocks" before engine V1, two lines for size and concurrency until 0.29, one line
since. SGLang prints "K size, V size" for keys and values per head and "KV size" for a latent.
"""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_NUMBER = r"(\d[\d,]{0,17})"
_DECIMAL = r"(-?\d{1,9}(?:\.\d{1,9})?)"
_WORD = r"([^\s'\",]+)"

LINES = {
    "available": re.compile(rf"Available KV cache memory: {_DECIMAL} GiB"),
    "available_v0": re.compile(rf"(?:kv_cache_size=|memory reserved for KV Cache is ){_DECIMAL}GiB"),
    "tokens": re.compile(rf"GPU KV cache size: {_NUMBER} tokens"),
    "blocks_v0": re.compile(rf"(?:GPU|CUDA) blocks: {_NUMBER}"),
    "concurrency": re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request: {_DECIMAL}x"),
    "allocated": re.compile(
        rf"KV Cache is allocated\..*?#tokens: {_NUMBER}, "
        rf"(?:KV size: {_DECIMAL} GB|K size: {_DECIMAL} GB, V size: {_DECIMAL} GB)"
    ),
    "max_total": re.compile(rf"\bmax_total_num_tokens={_NUMBER}"),
    "cache_format": re.compile(r"Using (?:DeepSeek's |probe DeepSeek V4 )?([\w-]+) KV cache format"),
    "index_format": re.compile(r"Using (\w+) indexer cache"),
    "block_size": re.compile(r"Setting kv cache block size to (\d{1,12})"),
    "chunk_tokens": re.compile(r"Chunked prefill is enabled with max_num_batched_tokens=(\d{1,12})"),
    "version": re.compile(
        r"(?:Initializing an? (?:V1 )?LLM engine \(v|API server version |\bversion )(\d+\.\d[\w.+-]*)"
    ),
}

# One API server prints its banner once, so a banner after sizes is another start.
START = re.compile(r"non-default args:|vLLM API server version|server_args=ServerArgs\(|API server args")

# Which process speaks: "(Worker_TP0_EP0 pid=124434)", "(EngineCore_DP1 pid=7)" or "[2025-03-25 16:37:06 TP0]".
RANK = re.compile(r"\((\w*(?:Worker|EngineCore)\w*(?: rank=\d+)?(?: pid=\d+)?)|\[[\d\- :,.]*\s((?:[A-Z]{2}\d+ ?)+)\]")

# Lines without any of these words say nothing that is asked here, and most lines of a long log are such.
INTERESTING = re.compile(
    r"KV|kv_cache_size|blocks: |Maximum concurrency|max_total_num_tokens|cache for|cache block size|Chunked prefill|"
    r"LLM engine|with config:|API server|version|args|vllm serve|launch_server|vllm\.entrypoints|--"
)

ARGUMENT_LINE = re.compile(
    r"non-default args:|with config:|ServerArgs\(|vllm serve|sglang\.launch_server|vllm\.entrypoints|^\s*--\w"
)


def _argument(*names: str, value: str = r"(\d{1,12})") -> re.Pattern:
    """``name=value``, ``'name': value`` or ``--name value``, with the name's dashes or underscores."""
    spelled = "|".join(name.replace("_", "[_-]") for name in names)
    return re.compile(rf"(?:(?<=[\s,({{'\"])|^)(?:--)?(?:{spelled})['\"]?\s*(?:[=:]\s*|\s)['\"]?{value}")


ARGUMENTS = {
    "model": re.compile(r"vllm serve ([^\s-][^\s'\",]*)|" + _argument("model", "model_path", value=_WORD).pattern),
    "max_model_len": _argument("max_model_len", "max_seq_len", "context_length", value=r"(\d{1,12}|None)"),
    "kv_cache_dtype": _argument("kv_cache_dtype", value=r"([\w.]+)"),
    "tensor_parallel": _argument("tensor_parallel_size", "tp_size", "tp"),
    "pipeline_parallel": _argument("pipeline_parallel_size", "pp_size", "pp"),
    "data_parallel": _argument("data_parallel_size", "dp_size", "dp"),
    "context_parallel": _argument("decode_context_parallel_size", "dcp_size"),
    "dp_attention": re.compile(r"enable_dp_attention=(True|False)"),
    "block_size": _argument("block_size", "page_size"),
    "chunk_tokens": _argument("max_num_batched_tokens", "chunked_prefill_size"),
    "speculative": re.compile(
        r"speculative[_-]config['\"]?[=:]?\s*(?:SpeculativeConfig\()?['\"]?\{?['\"]?method['\"]?[=:]\s*['\"]?(\w+)"
        r"|speculative_algorithm=['\"](\w+)['\"]"
    ),
}


def clean(line: str) -> str:
    """A line without colour and cursor codes."""
    return _ANSI.sub("", line)
