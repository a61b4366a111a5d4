"""What the tests of cache writes share: rows to write, poisoned planes to write to, and the steps of the model."""

import torch

from ds41.formats import BlockFormat, Packed
from ds41.rope import rotate_by, turns

EPS = 1e-20
POISON = 0xAA


def layout(block_format: BlockFormat) -> dict:
    return {name: getattr(block_format, name) for name in ("element", "scale", "block", "amax_floor")}


def planes(block_format, pages, entries, channels, device) -> Packed:
    """Poisoned planes as views of one pool of pages, with other bytes before, between and after them."""
    scale_bytes = channels // block_format.block
    code_bytes = block_format.bytes_per_row(channels) - scale_bytes
    pool = torch.full((pages, 16 + entries * (code_bytes + scale_bytes) + 48), POISON, dtype=torch.uint8).to(device)
    middle = 16 + entries * code_bytes
    return Packed(
        pool[:, 16:middle].unflatten(1, (entries, code_bytes)),
        pool[:, middle : middle + entries * scale_bytes].unflatten(1, (entries, scale_bytes)),
    )


def pool_of(packed: Packed) -> torch.Tensor:
    """All memory that the planes are views of."""
    storage = packed.codes.untyped_storage()
    return packed.codes.as_strided((len(storage),), (1,), storage_offset=0)


def turn_of(rows: int, rotated: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    positions = torch.randint(0, 1 << 20, (rows,), generator=generator)
    return turns(positions, 10000.0 ** -(torch.arange(rotated // 2) / (rotated // 2)))


def rows_like(rows: int, channels: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Rows of different magnitudes, with zeros of both signs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, channels, generator=generator)
    x *= torch.exp2(torch.randint(-8, 9, (rows, 1), generator=generator))
    x[:, 3::29] = 0.0
    x[:, 5::31] = -0.0
    return x.to(dtype)


def exact_rows(rows: int, channels: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Rows whose mean square is a power of four, so that any order of summing and any root gives the same norm."""
    generator = torch.Generator().manual_seed(seed)
    # In groups of 8 channels: 0, 0, 1, -1, 1, 1, -2, 0 has square sum 8.
    pattern = torch.tensor([0.0, 0, 1, -1, 1, 1, -2, 0]).repeat(channels // 8)
    x = torch.stack([pattern[torch.randperm(channels, generator=generator)] for _ in range(rows)])
    return (x * torch.exp2(torch.randint(-6, 7, (rows, 1), generator=generator))).to(dtype)


def weight_of(channels: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> torch.Tensor:
    return (1 + 0.3 * torch.randn(channels, generator=torch.Generator().manual_seed(seed))).to(dtype)


def addresses(rows: int, pages: int, entries: int, seed: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct places in the pages, in no order."""
    flat = torch.randperm(pages * entries, generator=torch.Generator().manual_seed(seed))[:rows]
    return flat // entries, flat % entries


def norm_in_double(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()


def reference(block_format, latent: torch.Tensor, turn: torch.Tensor) -> Packed:
    return block_format.encode(rotate_by(latent, turn))


def assert_stored(packed: Packed, page, place, expected: Packed, untouched: bool = True) -> None:
    """The rows hold what they should, and every other byte of the pool is as it was."""
    for got, wanted in zip((packed.codes, packed.scales), expected, strict=True):
        wrong = torch.nonzero(got[page, place].cpu() != wanted)
        assert not len(wrong), f"{len(wrong)} bytes differ, first at {wrong[0].tolist()}"
    if untouched:
        copy = pool_of(packed).clone()
        inside = Packed(*(copy.as_strided(p.shape, p.stride(), p.storage_offset()) for p in packed))
        for plane in inside:
            plane[page, place] = POISON
        assert (copy == POISON).all()
