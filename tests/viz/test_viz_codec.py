"""The explorers' arithmetic in the browser against the library's, bit for bit."""

from __future__ import annotations

import json
import math
import random
import struct

import pytest
import torch

from ds41.formats import INDEX_KEY, MAIN_KV, WINDOW_KV, BlockFormat
from ds41.small_floats import e2m1_values, e4m3_values, e8m0_values
from ds41.viz.bit_explorer import format_data, show
from ds41.viz.diagram import asset

FORMATS = [MAIN_KV, INDEX_KEY, WINDOW_KV]


@pytest.fixture(scope="module")
def codec(chromium):
    page = chromium.new_page()
    page.add_script_tag(content=asset("js/words.js") + asset("js/codec.js"))
    yield page
    page.close()


def blocks_for(block_format: BlockFormat) -> torch.Tensor:
    """Blocks [N, block] of float32: ordinary, tied, tiny, huge, subnormal, and any finite bits at all."""
    generator = torch.Generator().manual_seed(41)
    size = block_format.block

    def normal(count: int) -> torch.Tensor:
        return torch.randn(count, size, generator=generator)

    powers = torch.randint(-149, 127, (1500, 1), generator=generator).float()
    spread = torch.ldexp(normal(1500), powers).clamp(-3.4e38, 3.4e38)
    # Multiples of an eighth of a level under power-of-two and other scales: exact ties and their neighbours.
    grid = torch.randint(-52, 53, (1500, size), generator=generator).float() / 8
    grid[:, 0] = block_format.element_max
    factors = torch.tensor([1.0, 0.5, 2.0**-9, 2.0**-6, 0.4375, 13.0, 448.0])
    ties = grid * factors[torch.randint(0, len(factors), (1500, 1), generator=generator)]
    nudged = torch.nextafter(ties, torch.full_like(ties, math.inf) * torch.where(torch.rand(ties.shape) < 0.5, 1, -1))
    small = normal(500) * torch.logspace(-6, 0, 500)[:, None]
    bits = torch.randint(0, 2**32, (1000, size), generator=generator, dtype=torch.int64)
    patterns = torch.where(bits >> 23 & 255 == 255, bits & ~(1 << 30), bits).to(torch.int32).view(torch.float32)
    zeros = torch.zeros(2, size)
    zeros[1] = -0.0
    return torch.cat([normal(1000), spread, ties, nudged, small, patterns, zeros])


def words(values: torch.Tensor) -> list:
    """float32 as unsigned integers."""
    return (values.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF).tolist()


@pytest.mark.browser
def test_every_code_has_its_value(codec):
    shown = codec.evaluate(
        "Object.fromEntries(Object.entries(TYPES).map(([name, type]) => [name, "
        "[...Array(1 << type.bits).keys()].map(code => String(valueOf(type, code)))]))"
    )
    for name, values in (("e2m1", e2m1_values()), ("e4m3", e4m3_values()), ("e8m0", e8m0_values())):
        assert len(shown[name]) == len(values)
        for text, value in zip(shown[name], values, strict=True):
            assert math.isnan(value) if text == "NaN" else float(text) == value


@pytest.mark.browser
@pytest.mark.parametrize("block_format", FORMATS, ids=lambda one: one.name)
def test_blocks_are_encoded_to_the_same_bits(codec, block_format):
    blocks = blocks_for(block_format)
    assert torch.isfinite(blocks).all()
    packed = block_format.encode(blocks)
    if block_format.element == "e2m1":
        codes = torch.stack((packed.codes & 15, packed.codes >> 4), dim=-1).flatten(1)
    else:
        codes = packed.codes
    read = block_format.decode(packed, torch.float32)
    clipped = block_format.clipped_blocks(blocks)[:, 0]
    # As text: playwright takes its time over arrays of numbers.
    text = codec.evaluate(
        """text => {
          const [format, words] = JSON.parse(text);
          // Bits, not decimal text: JSON has no minus zero.
          const float = new Float32Array(1), word = new Uint32Array(float.buffer);
          const bits = x => { float[0] = x; return word[0]; };
          return JSON.stringify(words.map(block => {
            const encoded = encodeBlock(format, block.map(one => { word[0] = one; return float[0]; }));
            return [encoded.scaleByte, encoded.codes, encoded.stored.map(bits), encoded.clips];
          }));
        }""",
        json.dumps([format_data(block_format), words(blocks)]),
    )
    got = json.loads(text)
    assert [one[0] for one in got] == packed.scales[:, 0].tolist()
    assert [one[1] for one in got] == codes.tolist()
    assert [one[2] for one in got] == words(read)
    assert [one[3] for one in got] == clipped.tolist()
    assert clipped.any() == (block_format is MAIN_KV)


@pytest.mark.browser
def test_numbers_are_written_alike(codec):
    generator = random.Random(4)
    numbers = [generator.gauss(0, 1) * 10 ** generator.randint(-45, 38) for _ in range(2000)]
    numbers += [0.0, 1.0, -1.5, 448.0, 2.0**-9, 1e6, 999_999.6, 123_456.0, 1e-4, 9.9999e-5, 2.0**127, 0.1, 100.0]
    numbers += [struct.unpack("f", struct.pack("f", x))[0] for x in (0.1, 2.3, 1 / 3, 0.011719)]
    for digits in (2, 3, 4, 6):
        shown = codec.evaluate("([xs, digits]) => xs.map(x => show(x, digits))", [numbers, digits])
        assert shown == [show(x, digits) for x in numbers]
    assert codec.evaluate("[show(NaN), show(-0)]") == [show(math.nan), show(-0.0)] == ["NaN", "−0"]
