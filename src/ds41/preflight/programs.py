"""What is tried in a Python of its own: ``python -m ds41.preflight.programs NAME ...`` prints its answers as JSON.

Source: ds41's own.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import warnings
from collections.abc import Callable

from ds41.preflight.finding import ANSWER

PROMPT = "def ledger(config):\n    return sum(entry.nbytes / layer.ratio for layer in config.layers if layer.owns_kv)\n"
"""What the shipped model reads: longer than its window and its top-k."""
DECODED = 6
"""Tokens of :data:`PROMPT` that are read one by one; those before them are one prefill."""


def answer(**values: object) -> None:
    """Print one answer."""
    print(f"\n{ANSWER}{json.dumps(values)}", flush=True)


def imports(*modules: str) -> None:
    """Import each module, and say of each what happened: a crash leaves those before it told."""
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as error:
            answer(module=module, error=f"{type(error).__name__}: {error}")
        else:
            answer(module=module, error="")


def gpu() -> None:
    """What torch says of itself and its devices, and whether a sum on the first of them is right."""
    import torch

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    devices, computes = [], ""
    if available:
        try:
            for index in range(torch.cuda.device_count()):
                told = torch.cuda.get_device_properties(index)
                devices.append({"name": told.name, "capability": [told.major, told.minor], "memory": told.total_memory})
            total = float(torch.arange(1001, dtype=torch.float32, device="cuda").sum())
            computes = "" if total == 500500 else f"0 + 1 + ... + 1000 = {total:g}"
        except (RuntimeError, AssertionError) as error:
            computes = str(error).splitlines()[0]
    answer(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        available=available,
        devices=devices,
        computes=computes,
        warnings=[str(warning.message).splitlines()[0] for warning in caught],
    )


def kernel(device: str) -> None:
    """One small Triton kernel on ``device``, "cpu" or "cuda": the largest relative error against float64."""
    import torch

    from ds41.kernels.norm import rms_norm_rows

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 96, generator=generator)
    weight = torch.rand(96, generator=generator) + 0.5
    wide = x.double()
    expected = weight.double() * wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    normed = rms_norm_rows(x.to(device), weight.to(device), 1e-6).cpu().double()
    answer(error=float(((normed - expected).abs() / expected.abs()).max()))


def model() -> None:
    """The shipped model reads a prompt at once, and again through its cache: are the logits finite and the same?"""
    import torch

    from ds41.tokenizer import byte_tokenizer
    from ds41.trained import load_trained

    with torch.no_grad():
        trained = load_trained("nano")
        ids = torch.tensor([trained.config.bos_token_id, *byte_tokenizer().encode(PROMPT).ids])
        whole = trained(ids[None])[0]
        cache = trained.new_cache(len(ids))
        begin = len(ids) - DECODED
        steps = [trained.prefill(ids[:begin], cache)[0]]
        steps += [trained.decode(int(token), cache)[0, 0] for token in ids[begin:]]
        cached = torch.stack(steps)
        expected = whole[begin - 1 :]
    answer(
        tokens=len(ids),
        finite=bool(torch.isfinite(whole).all() and torch.isfinite(cached).all()),
        difference=float((cached - expected).norm() / expected.norm()),
        next=[int(cached[-1].argmax()), int(expected[-1].argmax())],
    )


def kernelspec(name: str) -> None:
    """The command of a Jupyter kernel as Jupyter would start it, and the prefix of the Python that it starts."""
    from jupyter_client.manager import KernelManager

    command = KernelManager(kernel_name=name).format_kernel_cmd()
    told = subprocess.run(
        [command[0], "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, timeout=40, check=True
    )
    answer(command=command[0], prefix=told.stdout.strip())


def notebook(name: str) -> None:
    """Start a Jupyter kernel, let it run ``1+1`` and import ds41, and say what came back."""
    from jupyter_client.manager import start_new_kernel

    manager, client = start_new_kernel(kernel_name=name, startup_timeout=60)
    results = []

    def listen(message: dict) -> None:
        if message["msg_type"] == "execute_result":
            results.append(message["content"]["data"]["text/plain"])

    try:
        reply = client.execute_interactive(
            "1+1",
            output_hook=listen,
            timeout=60,
            user_expressions={"prefix": "__import__('sys').prefix", "version": "__import__('ds41').__version__"},
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    told = {}
    for key, value in reply["content"].get("user_expressions", {}).items():
        told[key] = value["data"]["text/plain"].strip("'") if value["status"] == "ok" else value["evalue"]
    answer(status=reply["content"]["status"], results=results, told=told)


PROGRAMS: dict[str, Callable[..., None]] = {
    program.__name__: program for program in (imports, gpu, kernel, model, kernelspec, notebook)
}
"""The programs by name."""


if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
