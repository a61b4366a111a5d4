"""The indexer's scores from packed pages against the torch definition on the decoded numbers."""

import pytest
import torch

from ds41.formats import INDEX_KEY, Packed
from ds41.kernels import index_scores as module
from ds41.kernels.decode import decode_blocks
from ds41.kernels.index_operands import PagedKeys, Queries
from ds41.kernels.index_scores import (
    index_scores_launch,
    index_scores_of_pool_packed,
    index_scores_of_pool_packed_cost,
    index_scores_packed,
    index_scores_packed_cost,
)
from ds41.kernels.index_scores_sums import index_scores_sums_launch
from ds41.ops.index_scores import index_scores
from ds41.ops.selection import entries_of_blocks

INF = float("inf")
# How the result is computed: with the launch that the device takes, or without matrix products.
KINDS = ["wrapper", "sums"]
each_kind = pytest.mark.parametrize("kind", KINDS)


class Scene:
    """Queries of several sequences, and their keys in the pages of a pool that holds other bytes too."""

    def __init__(
        self,
        device: torch.device,
        *,
        rows: int = 3,
        heads: int = 4,
        channels: int = 64,
        page_entries: int = 8,
        max_pages: int = 20,
        sequences: int = 2,
        seed: int = 0,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.heads, self.channels, self.page_entries = heads, channels, page_entries
        spread = torch.exp2(torch.randint(-3, 4, (rows, heads, 1), generator=generator))
        queries = INDEX_KEY.encode(torch.randn(rows, heads, channels, generator=generator) * spread)
        self.weight = torch.randn(rows, heads, generator=generator).to(device)
        pages = sequences * max_pages + 1
        keys = INDEX_KEY.encode(torch.randn(pages, page_entries, channels, generator=generator))
        # A page: some other plane, codes, scales, rest. Bytes outside the planes are NaN where read as scales.
        code_bytes, scale_bytes = page_entries * channels // 2, page_entries * channels // 32
        pool = torch.full((pages, 64 + code_bytes + scale_bytes + 16), 255, dtype=torch.uint8)
        pool[:, 64 : 64 + code_bytes] = keys.codes.flatten(1)
        pool[:, 64 + code_bytes : 64 + code_bytes + scale_bytes] = keys.scales.flatten(1)
        self.pool = pool.to(device)
        self.key_codes = self.pool[:, 64 : 64 + code_bytes].unflatten(1, (page_entries, -1))
        self.key_scales = self.pool[:, 64 + code_bytes : 64 + code_bytes + scale_bytes].unflatten(1, (page_entries, -1))
        self.query_codes, self.query_scales = queries.codes.to(device), queries.scales.to(device)
        order = torch.randperm(pages, generator=generator)[: sequences * max_pages]
        self.page_table = order.view(sequences, max_pages).to(device)
        self.sequence = (torch.arange(rows) % sequences).to(device)
        self.visible = torch.full((rows,), page_entries * max_pages).to(device)

    def operands(self) -> tuple[torch.Tensor, ...]:
        return (self.query_codes, self.query_scales, self.weight, self.key_codes, self.key_scales, self.page_table,
                self.sequence, self.visible)  # fmt: skip

    def keys_of(self, row: int) -> torch.Tensor:
        """Decoded keys of a row's sequence, [max_pages * page_entries, C]; of page 0 where there is none."""
        pages = self.page_table[self.sequence[row]].clamp(min=0)
        packed = Packed(self.key_codes[pages].flatten(0, 1).cpu(), self.key_scales[pages].flatten(0, 1).cpu())
        return INDEX_KEY.decode(packed, torch.float32)

    def query(self) -> torch.Tensor:
        return INDEX_KEY.decode(Packed(self.query_codes.cpu(), self.query_scales.cpu()), torch.float32)

    def expected(self, entries: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """By the torch definition, computed in ``dtype``."""
        rows = []
        query, weight = self.query().to(dtype), self.weight.cpu().to(dtype)
        for row in range(len(self.visible)):
            keys = self.keys_of(row)[:entries].to(dtype)
            scores = index_scores(query[row : row + 1], weight[row : row + 1], keys)
            entry = torch.arange(entries)
            page = self.page_table[self.sequence[row]].cpu()[entry // self.page_entries]
            hidden = (entry >= self.visible[row].cpu()) | (page < 0)
            rows.append(scores.masked_fill(hidden, -INF))
        return torch.cat(rows)

    def scores(self, kind: str, entries: int, one_sequence: bool = False) -> torch.Tensor:
        if kind == "wrapper":
            return index_scores_packed(*self.operands(), entries, one_sequence)
        out = self.weight.new_full((len(self.visible), entries), float("nan"))
        index_scores_sums_launch(
            self.decoded(), self.weight, PagedKeys(*self.operands()[3:]), None, out, one_sequence=one_sequence
        ).run()
        return out

    def pool_scores(self, kind: str, candidates: torch.Tensor, block: int) -> torch.Tensor:
        if kind == "wrapper":
            return index_scores_of_pool_packed(*self.operands(), candidates, block)
        out = self.weight.new_full((len(self.visible), candidates.shape[1] * block), float("nan"))
        index_scores_sums_launch(
            self.decoded(), self.weight, PagedKeys(*self.operands()[3:]), candidates.contiguous(), out, pool_block=block
        ).run()
        return out

    def decoded(self) -> torch.Tensor:
        return decode_blocks(
            self.query_codes, self.query_scales, element="e2m1", scale="e8m0", block=32, dtype=torch.float32
        )


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-5, atol=1e-4, equal_nan=True)


@each_kind
@pytest.mark.parametrize(
    ("heads", "channels", "page_entries", "entries"),
    [(4, 32, 8, 160), (8, 64, 16, 77), (32, 128, 64, 300), (32, 128, 32, 129), (1, 96, 8, 1), (5, 160, 6, 50)],
)
def test_scores(kind, heads, channels, page_entries, entries, device):
    scene = Scene(device, heads=heads, channels=channels, page_entries=page_entries)
    assert_close(scene.scores(kind, entries), scene.expected(entries))


@each_kind
def test_rows_see_what_is_visible(kind, device):
    scene = Scene(device, rows=6)
    scene.visible = torch.tensor([0, 1, 7, 8, 130, 160], device=device)
    scores = scene.scores(kind, 160)
    assert_close(scores, scene.expected(160))
    assert (scores > -INF).sum(1).tolist() == [0, 1, 7, 8, 130, 160]


@each_kind
@pytest.mark.parametrize("rows", [1, 5, 16, 19])
def test_rows_of_one_sequence_share_keys(kind, rows, device):
    scene = Scene(device, rows=rows, sequences=1)
    scene.visible = (torch.arange(rows) + 125).to(device)
    together = scene.scores(kind, 150, one_sequence=True)
    assert_close(together, scene.expected(150))
    assert torch.equal(together, scene.scores(kind, 150))


@each_kind
def test_one_sequence_in_any_order_of_rows(kind, device):
    scene = Scene(device, rows=4, sequences=1)
    scene.visible = torch.tensor([150, 3, 0, 129], device=device)
    assert_close(scene.scores(kind, 155, one_sequence=True), scene.expected(155))


@each_kind
def test_pages_that_are_not_there(kind, device):
    scene = Scene(device)
    scene.page_table[0, 3:] = -1
    scene.page_table[1, 2] = -1
    scores = scene.scores(kind, 160)
    assert_close(scores, scene.expected(160))
    assert torch.isinf(scores[0, 24:]).all()
    assert torch.isinf(scores[1, 16:24]).all()
    assert torch.isfinite(scores[1, 24:]).all()


@each_kind
@pytest.mark.parametrize(("block", "page_entries"), [(8, 8), (8, 32), (8, 4), (5, 8), (1, 8), (16, 6)])
def test_pools(kind, block, page_entries, device):
    scene = Scene(device, page_entries=page_entries)
    held = page_entries * 20
    scene.visible = torch.tensor([held, held // 2, 1], device=device)
    generator = torch.Generator().manual_seed(5)
    blocks = -(-held // block)
    candidates = torch.stack([torch.randperm(blocks, generator=generator)[:4].sort().values for _ in range(3)])
    candidates[0, 2:] = -1
    candidates[2, 0] = 0
    entries = entries_of_blocks(candidates, block, scene.visible.cpu())
    usable = (entries >= 0) & (entries < held)
    expected = scene.expected(held).gather(1, entries.clamp(0, held - 1)).masked_fill(~usable, -INF)
    assert_close(scene.pool_scores(kind, candidates.to(device), block), expected)


@each_kind
def test_a_pool_scores_as_the_full_range_does(kind, device):
    scene = Scene(device, heads=8, channels=128)
    candidates = torch.arange(20, device=device).expand(3, 20)
    assert torch.equal(scene.pool_scores(kind, candidates, 8), scene.scores(kind, 160))


@each_kind
def test_a_row_of_no_candidates(kind, device):
    scene = Scene(device)
    candidates = torch.full((3, 2), -1, device=device)
    candidates[1] = torch.tensor([0, 1])
    scores = scene.pool_scores(kind, candidates, 8)
    assert torch.isfinite(scores).sum(1).tolist() == [0, 16, 0]


@each_kind
def test_errors_stay_within_twice_those_of_torch(kind, device):
    scene = Scene(device, heads=32, channels=128, page_entries=32)
    exact = scene.expected(256, torch.float64)
    plain = (scene.expected(256).double() - exact).abs().max()
    error = (scene.scores(kind, 256).cpu().double() - exact).abs().max()
    assert error <= 2 * plain


@each_kind
def test_sums_over_channels_are_exact(kind, device):
    """One head of weight 1: within the spread of scales that the rows here have, a score is the exact product."""
    scene = Scene(device, rows=2, heads=1, channels=128)
    scene.weight.fill_(1.0)
    assert torch.equal(scene.scores(kind, 160).cpu().double(), scene.expected(160, torch.float64))


@each_kind
def test_scales_of_any_size(kind, device):
    """Keys 2^90 and 2^-30 times the usual size and queries 2^-90 times: nothing overflows or is lost on the way."""
    scene = Scene(device, sequences=1)
    scene.query_scales.fill_(127 - 90)
    scene.key_scales[:, ::2] = 127 + 90
    scene.key_scales[:, 1::2] = 127 - 30
    scores, expected = scene.scores(kind, 160).cpu(), scene.expected(160)
    for part in (slice(0, None, 2), slice(1, None, 2)):
        unit = float(expected[:, part].abs().max())
        assert unit > 0
        torch.testing.assert_close(scores[:, part] / unit, expected[:, part] / unit, rtol=1e-5, atol=1e-6)


@each_kind
def test_nan_stays_nan(kind, device):
    """A key whose scale byte is NaN, where it is visible; a selection never takes it."""
    scene = Scene(device, sequences=1)
    scene.visible = torch.tensor([160, 160, 9], device=device)
    page = int(scene.page_table[0, 1])
    scene.key_scales[page, 2] = 255
    scores = scene.scores(kind, 160)
    assert torch.isnan(scores).nonzero().tolist() == [[0, 10], [1, 10]]


@each_kind
def test_unseen_bytes_do_not_matter(kind, device):
    scene = Scene(device)
    scene.visible = torch.tensor([20, 33, 0], device=device)
    before = scene.scores(kind, 160)
    used = {int(page) for sequence, seen in ((0, 20), (1, 33)) for page in scene.page_table[sequence, : seen // 8 + 1]}
    for page in set(range(len(scene.pool))) - used:
        scene.pool[page] = 255
    scene.key_scales[scene.page_table[0, 2], 4:] = 255
    assert torch.equal(scene.scores(kind, 160), before)


@pytest.mark.parametrize("one_sequence", [False, True])
def test_every_place_is_written(one_sequence, monkeypatch, device):
    new_empty = torch.Tensor.new_empty

    def poisoned(tensor, *size, **options):
        made = new_empty(tensor, *size, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made.fill_(0x2A)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    scene = Scene(device, sequences=1)
    scene.visible = torch.tensor([0, 2, 140], device=device)
    scene.page_table[0, 15] = -1
    assert_close(scene.scores("wrapper", 150, one_sequence), scene.expected(150))


def test_repeated_launches_agree(device):
    scene = Scene(device)
    first = scene.scores("wrapper", 160)
    for _ in range(19 if device.type == "cuda" else 2):
        assert torch.equal(scene.scores("wrapper", 160), first)


@each_kind
def test_offsets_beyond_32_bits(kind, device):
    """Pages 2^31 bytes apart, in a buffer that is never touched elsewhere."""
    scene = Scene(device, rows=2, sequences=1, max_pages=3)
    buffer = torch.empty(3 * 2**31 + 2**20, dtype=torch.uint8, device=device)
    codes = buffer.as_strided((4, 8, 32), (2**31 + 64, 32, 1), storage_offset=64)
    scales = buffer.as_strided((4, 8, 2), (2**31 + 64, 2, 1), storage_offset=1024)
    codes.copy_(scene.key_codes[:4])
    scales.copy_(scene.key_scales[:4])
    expected = scene.expected(24)
    scene.key_codes, scene.key_scales = codes, scales
    assert_close(scene.scores(kind, 24), expected)


def test_other_strides_than_those_of_contiguous_tensors(device):
    scene = Scene(device)
    expected = scene.expected(160)
    scene.query_codes = scene.query_codes.repeat_interleave(2, dim=1)[:, ::2]
    scene.query_scales = scene.query_scales.transpose(0, 1).contiguous().transpose(0, 1)
    scene.weight = scene.weight.T.contiguous().T
    scene.page_table = scene.page_table.T.contiguous().T
    scene.sequence, scene.visible = (t.repeat_interleave(2)[::2] for t in (scene.sequence, scene.visible))
    assert_close(scene.scores("wrapper", 160), expected)


def test_nothing_to_score(monkeypatch, device):
    scene = Scene(device)
    monkeypatch.setattr(module, "index_scores_launch", None)
    assert index_scores_packed(*scene.operands(), 0).shape == (3, 0)
    assert index_scores_of_pool_packed(*scene.operands(), scene.page_table[:0].new_empty(3, 0), 8).shape == (3, 0)
    none = Scene(device, rows=0)
    assert index_scores_packed(*none.operands(), 100).shape == (0, 100)
    assert index_scores_of_pool_packed(*none.operands(), scene.page_table.new_empty(0, 4), 8).shape == (0, 32)


def test_old_gpus_take_no_matrix_product(monkeypatch, device):
    """The choice between the two kernels hangs on the device's capability alone."""
    taken = []
    for name in ("index_scores_launch", "index_scores_sums_launch"):
        launch = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, name=name, launch=launch, **k: taken.append((name, a[0].dtype)) or launch(*a, **k)
        )
    scene = Scene(device, rows=1, max_pages=1)
    for target in (75, 0, 80, 120):
        monkeypatch.setattr(module, "capability", lambda tensor, target=target: target)
        monkeypatch.setattr(module.Launch, "run", lambda launch: None)
        index_scores_packed(*scene.operands(), 8)
    assert taken == [
        ("index_scores_sums_launch", torch.float32),
        ("index_scores_launch", torch.float32),
        ("index_scores_launch", torch.bfloat16),
        ("index_scores_launch", torch.bfloat16),
    ]


def test_one_program_serves_the_rows_of_a_sequence(device):
    scene = Scene(device, rows=40, sequences=1)
    keys = PagedKeys(*scene.operands()[3:])
    out = scene.weight.new_empty(40, 160)
    for launch in (index_scores_launch, index_scores_sums_launch):
        arguments = (scene.decoded(), scene.weight, keys, None, out)
        assert launch(*arguments, one_sequence=True).grid == (3, 2)
        assert launch(*arguments).grid == (40, 2)


def bad(change: str, value) -> callable:
    def call(scene: Scene) -> None:
        setattr(scene, change, value(getattr(scene, change)))
        index_scores_packed(*scene.operands(), 10)

    return call


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (bad("query_codes", lambda t: t.int()), TypeError, "query_codes is torch.int32; expected torch.uint8"),
        (bad("query_codes", lambda t: t[:, :, :24]), ValueError, r"query_codes has shape \[3, 4, 24\]"),
        (bad("query_codes", lambda t: t[0]), ValueError, r"query_codes has shape \[4, 32\]"),
        (bad("query_scales", lambda t: t[:, :, :1]), ValueError, r"query_scales has shape \[3, 4, 1\]"),
        (bad("weight", lambda t: t.half()), TypeError, "weight is torch.float16"),
        (bad("weight", lambda t: t[:2]), ValueError, r"weight has shape \[2, 4\]; expected \[3, 4\]"),
        (bad("key_codes", lambda t: t[:, :, :16]), ValueError, r"key_codes has shape \[41, 8, 16\]"),
        (bad("key_codes", lambda t: t[0]), ValueError, r"key_codes has shape \[8, 32\]"),
        (bad("key_codes", lambda t: t.repeat(1, 1, 2)[:, :, ::2]), ValueError, "key_codes has strides"),
        (bad("key_scales", lambda t: t[:5]), ValueError, r"key_scales has shape \[5, 8, 2\]"),
        (bad("page_table", lambda t: t[0]), ValueError, r"page_table has shape \[20\]"),
        (bad("page_table", lambda t: t.int()), TypeError, "page_table is torch.int32"),
        (bad("sequence", lambda t: t[:2]), ValueError, r"sequence has shape \[2\]; expected \[3\]"),
        (bad("visible", lambda t: t.float()), TypeError, "visible is torch.float32"),
        (lambda s: index_scores_packed(*s.operands(), 161), ValueError, "entries is 161; expected 0 to 160"),
        (lambda s: index_scores_packed(*s.operands(), -1), ValueError, "entries is -1"),
        (lambda s: index_scores_of_pool_packed(*s.operands(), s.page_table, 8), ValueError, "candidates is"),
        (lambda s: index_scores_of_pool_packed(*s.operands(), s.page_table[:, 0], 8), ValueError, "candidates is"),
        (
            lambda s: index_scores_of_pool_packed(*s.operands(), s.page_table.new_zeros(3, 2), 0),
            ValueError,
            "block is 0",
        ),
    ],
)
def test_bad_input_is_named(call, error, message, device):
    with pytest.raises(error, match=message):
        call(Scene(device))


def test_costs():
    """A record of a key is 68 bytes at the published width."""
    assert index_scores_packed_cost(2, 1000, 32, 128) == (
        2 * 1000 * 68 + 2 * (32 * 72 + 4000),
        2 * 2 * 1000 * 32 * 129,
    )
    assert index_scores_packed_cost(2, 1000, 32, 128, True)[0] == 1000 * 68 + 2 * (32 * 72 + 4000)
    moved, operations = index_scores_of_pool_packed_cost(3, 2048, 8, 32, 128)
    assert moved == 3 * (2048 * 8 * (68 + 4) + 2048 * 8 + 32 * 72)
    assert operations == 2 * 3 * 16384 * 32 * 129


def test_queries_are_copied_only_if_they_must_be(device):
    scene = Scene(device)
    queries = Queries.of(*scene.operands()[:3])
    assert queries.codes.data_ptr() == scene.query_codes.data_ptr()
    keys = PagedKeys.of(queries, *scene.operands()[3:])
    assert keys.codes.data_ptr() == scene.key_codes.data_ptr()
