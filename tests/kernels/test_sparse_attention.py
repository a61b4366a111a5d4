"""Sparse attention over packed keys against the torch reference on gathered, decoded ones."""

import itertools
import math

import pytest
import torch
from attention_cases import PER_PAGE, Case, make_case

from ds41.formats import MAIN_KV, WINDOW_KV, Packed
from ds41.kernels import sparse_attention as module
from ds41.kernels.attention_kernel import compile_cases
from ds41.kernels.attention_plan import Plan, sparse_attention_packed_cost
from ds41.kernels.sparse_attention import sparse_attention_packed

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.fixture(params=["matrix", "lanes"])
def path(request, monkeypatch, device) -> str:
    """Both formulations on the same device: that for matrix instructions, and that of sm_75."""
    if request.param == "lanes":
        monkeypatch.setattr(module, "capability", lambda tensor: 75)
    return request.param


def run(case: Case, device: torch.device, **options) -> torch.Tensor:
    return sparse_attention_packed(**case.arguments(device), **options).cpu()


def assert_close(actual: torch.Tensor, case: Case, rotate_query: bool = False) -> None:
    expected = case.expected(rotate_query)
    assert actual.dtype == case.query.dtype
    assert actual.shape == expected.shape
    assert actual.is_contiguous()
    bound = TOLERANCE[actual.dtype] * expected.abs().amax(-1, keepdim=True).clamp(min=1e-3)
    wrong = torch.nonzero(~((actual.float() - expected).abs() <= bound))
    assert not len(wrong), f"{len(wrong)} values differ, first at {wrong[0].tolist()}"


@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_window_and_entries_in_one_softmax(path, splits, dtype, device):
    case = make_case(3, 6, 96, 9, 45, dtype=dtype)
    assert_close(run(case, device, splits=splits), case)


@pytest.mark.parametrize(
    ("heads", "channels", "window", "selected"),
    [(1, 32, 1, 1), (17, 64, 33, 3), (2, 512, 3, 9), (5, 160, 0, 4), (4, 96, 40, 0), (3, 32, 8, 32)],
)
def test_sizes(path, heads, channels, window, selected, device):
    case = make_case(2, heads, channels, window, selected, seed=heads)
    assert_close(run(case, device), case)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(("pairs", "rotate_query"), [(8, False), (8, True), (48, True)])
def test_rotation(path, splits, pairs, rotate_query, device):
    """Back by the conjugate; all channels of a head rotate in the last case."""
    case = make_case(2, pairs=pairs, seed=1)
    assert_close(run(case, device, splits=splits, rotate_query=rotate_query), case, rotate_query)


def test_layers_with_a_window_only(path, device):
    case = make_case(seed=2).change(main=None, page_table=None, sequence=None, selected=None)
    assert_close(run(case, device), case)
    empty = make_case(seed=2).change(selected=torch.empty(2, 0, dtype=torch.int64))
    assert torch.equal(run(empty, device), run(case, device))


@pytest.mark.parametrize("splits", [1, 4])
def test_a_masked_first_tile(path, splits, device):
    """Two keys of weights 1 and 3 beside a sink of weight 1, before, after and between empty slots; then none.

    A running maximum that starts at minus infinity gives NaN for all but the first.
    """
    keys = torch.zeros(2, 32)
    keys[0, 1], keys[1, 0], keys[1, 1] = 1, 1, 2
    places = [[0, 1], [62, 63], [5, 60], []]
    choice = torch.full((4, 64), -1)
    for row, place in enumerate(places):
        choice[row, place] = torch.arange(len(place))
    query = torch.zeros(4, 1, 32)
    query[..., 0] = math.log(3) * 32**0.5
    case = make_case(seed=3).change(
        query=query, sink=torch.zeros(1), window=WINDOW_KV.encode(keys), choice=choice,
        main=None, page_table=None, sequence=None, selected=None,
    )  # fmt: skip
    out = run(case, device, splits=splits)
    torch.testing.assert_close(out[:3, 0, :2], torch.tensor([0.6, 1.4]).expand(3, 2), rtol=0, atol=1e-6)
    assert torch.equal(out[3], torch.zeros(1, 32))


@pytest.mark.parametrize("splits", [1, 2])
def test_rows_without_a_key_and_infinite_sinks(path, splits, device):
    case = make_case(seed=4)
    case.choice[1], case.selected[1] = -1, -1
    sink = case.sink.clone()
    sink[:4] = torch.tensor([-math.inf, math.inf, 200.0, -200.0])
    case = case.change(sink=sink)
    out = run(case, device, splits=splits)
    assert_close(out, case)
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert torch.equal(out[:, 1], torch.zeros_like(out[:, 1]))


def test_a_single_key_and_a_key_twice(path, device):
    """One key alone with a sink far below gives itself; twice, with a sink of its own logit, two thirds."""
    case = make_case(1, 1, 32, 2, 2, seed=5)
    case = case.change(sink=torch.tensor([-1000.0]), choice=torch.tensor([[-1, -1]]), selected=torch.tensor([[-1, 11]]))
    key = case.keys()[0][0, 3]
    torch.testing.assert_close(run(case, device)[0, 0], key, rtol=1e-6, atol=0)
    sink = case.query[0] @ key * case.scale
    twice = case.change(sink=sink, selected=torch.tensor([[11, 11]]))
    torch.testing.assert_close(run(twice, device)[0, 0], key * 2 / 3, rtol=1e-5, atol=0)


def test_logits_far_beyond_the_exponent_range(path, device):
    case = make_case(2, seed=6)
    case = case.change(query=case.query * 3000)
    out = run(case, device)
    assert torch.isfinite(out).all()
    best = case.expected()
    torch.testing.assert_close(out, best, rtol=1e-3, atol=1e-3)


def test_pages_out_of_reach_hold_keys_of_zeros(path, device):
    """As the gather of the cache has it: a page that is none, and entries beyond the table."""
    case = make_case(seed=7)
    case.page_table[:, 2] = -1
    case.selected[:, 0] = 5 * PER_PAGE + 3
    assert (case.selected // PER_PAGE == 2).any()
    assert_close(run(case, device), case)


def test_rows_that_are_not_chosen_are_not_read(path, device):
    """Every byte that no slot names is NaN, in the pool's own layout, and outputs start as NaN."""
    case = make_case(3, seed=8)
    pool = torch.full((12, 8 * 70), 0xFF, dtype=torch.uint8)
    codes = pool[:, 16 : 16 + 8 * 48].unflatten(1, (8, 48))
    scales = pool[:, 400 : 400 + 8 * 6].unflatten(1, (8, 6))
    page = case.page_table[case.sequence[:, None], case.selected.clamp(min=0) // PER_PAGE]
    used = torch.zeros(12, 8, dtype=torch.bool)
    used[page[case.selected >= 0], (case.selected % PER_PAGE)[case.selected >= 0]] = True
    codes[used], scales[used] = case.main.codes[used], case.main.scales[used]
    ring = torch.full((20, 130), 0xFF, dtype=torch.uint8)
    rows = case.choice[case.choice >= 0].unique()
    ring[rows, :96], ring[rows, 96:99] = case.window.codes[rows], case.window.scales[rows]
    views = case.change(main=Packed(codes, scales), window=Packed(ring[:, :96], ring[:, 96:99]))
    assert not used.all()
    assert len(rows) < 20
    assert torch.equal(run(views, device), run(case, device))


@pytest.mark.parametrize("splits", [1, 3])
def test_outputs_are_written_whole(path, splits, device, monkeypatch):
    case = make_case(1, seed=9, pairs=4)
    arguments = case.arguments(device)
    plain = sparse_attention_packed(**arguments, splits=splits)
    allocate = torch.Tensor.new_empty

    def poisoned(*args, **options):
        tensor = allocate(*args, **options)
        return tensor.fill_(math.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    monkeypatch.setattr(torch, "empty_like", lambda x: torch.full_like(x, math.nan))
    assert torch.equal(sparse_attention_packed(**arguments, splits=splits), plain)


def test_strides_and_index_types(path, device):
    case = make_case(seed=10)
    expected = run(case, device)
    wide = torch.randn(5, 2, 2 * 96)
    wide[..., ::2] = case.query.transpose(0, 1)
    table = torch.full((2, 9), 99)
    table[:, :5] = case.page_table
    padded = torch.full((2, 40), 7)
    padded[:, ::2] = case.selected
    strided = case.change(
        query=wide[..., ::2].transpose(0, 1),
        page_table=table[:, :5],
        selected=padded[:, ::2],
        sequence=torch.stack((case.sequence, case.sequence), 1)[:, 0],
    )
    assert torch.equal(run(strided, device), expected)
    narrow = case.change(choice=case.choice.int())
    assert torch.equal(run(narrow, device), expected)
    assert torch.equal(run(narrow.change(selected=case.selected.int()), device), expected)


def test_offsets_beyond_32_bits(path, device):
    """Pages and window rows whose bytes pass 2^31, in the middle of a buffer so that a wrapped offset stays inside."""
    case = make_case(2, 3, 32, 8, 8, seed=11)
    far = 2**30 + 4096
    buffer = torch.empty(2**31 + 4 * far, dtype=torch.uint8, device=device)
    ahead = 2**31
    codes = buffer.as_strided((3, 8, 16), (far, 16, 1), storage_offset=ahead)
    scales = buffer.as_strided((3, 8, 2), (far, 2, 1), storage_offset=ahead + 128)
    window_codes = buffer.as_strided((4, 32), (far, 1), storage_offset=ahead + 256)
    window_scales = buffer.as_strided((4, 1), (far, 1), storage_offset=ahead + 512)
    for view, values in zip(
        (codes, scales, window_codes, window_scales),
        (case.main.codes[:3], case.main.scales[:3], case.window.codes[:4], case.window.scales[:4]),
        strict=True,
    ):
        view.copy_(values)
    case = case.change(
        choice=torch.tensor([[3, 2, 1, -1, 3, 0, 2, 3], [3] * 8]),
        selected=torch.tensor([[0, 8, 16, 23, -1, 20, 9, 1], [16, 17, 18, 19, 20, 21, 22, 23]]),
        page_table=torch.tensor([[0, 1, 2], [1, 0, 2]]),
    )
    expected = run(case, device)
    arguments = case.arguments(device)
    arguments |= {"main_codes": codes, "main_scales": scales}
    arguments |= {"window_codes": window_codes, "window_scales": window_scales}
    assert torch.equal(sparse_attention_packed(**arguments).cpu(), expected)


@pytest.mark.parametrize("splits", [1, 2])
def test_repeated_launches_agree(path, splits, device):
    case = make_case(1, seed=12, dtype=torch.bfloat16)
    first = run(case, device, splits=splits)
    for _ in range(19 if device.type == "cuda" else 2):
        assert torch.equal(run(case, device, splits=splits), first)


def test_splitting_changes_rounding_only(path, device):
    case = make_case(1, 2, 32, 40, 70, seed=13)
    whole = run(case, device, splits=1)
    for splits in (2, 1000):
        torch.testing.assert_close(run(case, device, splits=splits), whole, rtol=1e-5, atol=1e-6)


def test_no_worse_than_twice_the_plain_half_precision_path(device, monkeypatch):
    """fp16 operands of matrix products, as on sm_80 and above, against torch in fp16 throughout."""
    monkeypatch.setattr(module, "capability", lambda tensor: 80)
    case = make_case(2, 16, 64, 32, 96, dtype=torch.float16, seed=14)
    exact = case.exact()
    keys, usable = case.keys()
    keys = keys.half()
    logits = torch.bmm(case.query, keys.transpose(1, 2)) * case.scale
    sink = case.sink.half()[None, :, None].expand(2, -1, 1)
    shares = torch.cat((logits.masked_fill(~usable[:, None], -math.inf), sink), -1).softmax(-1)[..., :-1]
    plain = torch.bmm(shares, keys)
    error = (run(case, device).double() - exact).norm()
    assert error <= 2 * (plain.double() - exact).norm()


def test_window_rows_saturate_in_fp16_operands(device, monkeypatch):
    monkeypatch.setattr(module, "capability", lambda tensor: 80)
    case = make_case(1, 1, 32, 1, 0, dtype=torch.float16, seed=15)
    loud = Packed(torch.full((1, 32), 0x7E, dtype=torch.uint8), torch.full((1, 1), 150, dtype=torch.uint8))
    case = case.change(query=case.query * 0, sink=torch.tensor([-100.0]), window=loud, choice=torch.tensor([[0]]))
    assert torch.equal(run(case, device), torch.full((1, 1, 32), 65504.0, dtype=torch.float16))


def test_every_stored_number_is_decoded(path, device):
    """One key of each row, a sink far below: the output is the key, for all codes with many scales."""
    codes = torch.arange(256, dtype=torch.uint8).view(8, 32).clone()
    codes[(codes & 0x7F) == 0x7F] = 0
    window = Packed(codes, torch.tensor([[110 + 4 * row] for row in range(8)], dtype=torch.uint8))
    case = make_case(8, 1, 32, 1, 0, seed=16)
    case = case.change(
        query=case.query * 0, sink=torch.tensor([-100.0]), window=window, choice=torch.arange(8)[:, None]
    )
    assert torch.equal(run(case, device)[:, 0], WINDOW_KV.decode(window, torch.float32))
    codes = torch.arange(256, dtype=torch.uint8).view(2, 8, 16)
    scales = (torch.arange(32, dtype=torch.uint8) * 4 + 1).view(2, 8, 2)
    main = Packed(codes, scales)
    case = make_case(16, 1, 32, 0, 1, seed=17).change(
        sink=torch.tensor([-100.0]), main=main, page_table=torch.tensor([[1, 0]]),
        sequence=torch.zeros(16, dtype=torch.int64), selected=torch.arange(16)[:, None],
    )  # fmt: skip
    case = case.change(query=case.query * 0)
    assert torch.equal(run(case, device)[:, 0], MAIN_KV.decode(main, torch.float32)[[1, 0]].view(16, 32))


@pytest.mark.parametrize(("rows", "heads"), [(0, 5), (2, 0)])
def test_nothing_to_attend_for(rows, heads, device, monkeypatch):
    monkeypatch.setattr(module, "sparse_attention_launch", None)
    case = make_case(rows, heads)
    assert run(case, device).shape == (rows, heads, 96)


def test_no_slots_at_all(path, device):
    case = make_case(2, window=0, selected=0)
    assert torch.equal(run(case, device), torch.zeros(2, 5, 96))


@pytest.mark.parametrize("capability", [75, 80, 86, 89, 90, 100, 103, 120])
def test_plans_cover_all_keys_with_no_idle_program(capability):
    shapes = itertools.product((1, 3, 64, 4096), ((128, 512), (128, 0), (9, 33)), (0, 1, 7, 1000), TOLERANCE)
    for rows, (window, selected), splits, dtype in shapes:
        plan = Plan.of(rows, 64, window, selected, dtype, capability, splits)
        tiles = -(-window // plan.key_tile) - (-selected // plan.key_tile)
        assert (plan.splits - 1) * plan.tiles < tiles <= plan.splits * plan.tiles
        assert plan.matrix == (capability >= 80 and dtype != torch.float32)
        assert splits == 0 or plan.splits <= splits


def test_plans_fill_the_gpu_at_one_token_and_do_not_split_a_prefill():
    for capability, processors in ((75, 40), (90, 132), (100, 148)):
        one = Plan.of(1, 64, 128, 512, torch.float16, capability)
        assert one.splits * -(-64 // one.head_tile) >= min(processors, 80)
        many = Plan.of(4096, 64, 128, 512, torch.float16, capability)
        assert many.splits == 1
    assert Plan.of(4096, 64, 128, 512, torch.bfloat16, 90).head_tile == 64
    assert Plan.of(4096, 64, 128, 512, torch.bfloat16, 80).head_tile == 32
    assert Plan.of(1, 64, 128, 512, torch.bfloat16, 80).head_tile == 16


def test_tiles_of_matrix_products_have_at_least_16_of_everything():
    """The interpreter takes smaller ones, GPUs do not."""
    for case in compile_cases():
        constants = case.launch.constants
        if constants["MATRIX"]:
            assert min(constants["HEAD_TILE"], constants["KEY_TILE"], constants["HALF"]) >= 16
    for heads in (1, 8, 16, 64):
        assert Plan.of(1, heads, 128, 0, torch.bfloat16, 80).head_tile >= 16


def test_cost_at_the_published_shape():
    moved, operations = sparse_attention_packed_cost(1, 64, 512, 128, 512, turn_pairs=32)
    keys = 128 * WINDOW_KV.bytes_per_row(512) + 512 * MAIN_KV.bytes_per_row(512)
    assert moved == keys + 2 * 64 * 512 * 2 + 8 * 640 + 4 * 64 + 2 * 4 * 32
    assert operations == 2 * 2 * 64 * 512 * 640
    assert sparse_attention_packed_cost(3, 64, 512, 128, 512)[1] == 3 * operations


def test_the_wrapper_can_become_an_operator():
    schema = torch.library.infer_schema(sparse_attention_packed, mutates_args=())
    assert schema.startswith("(Tensor query, Tensor sink, Tensor window_codes")
    assert schema.endswith("-> Tensor")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": torch.ones(3, 6, 96, dtype=torch.float64)}, TypeError, "query is torch.float64"),
        ({"query": torch.ones(3, 6, 40)}, ValueError, r"\[3, 6, 40\].*multiple of 32"),
        ({"sink": torch.ones(5)}, ValueError, r"sink has shape \[5\]; expected \[6\]"),
        ({"window_codes": torch.ones(20, 96)}, TypeError, "window_codes is torch.float32"),
        ({"window_codes": torch.ones(96, 20, dtype=torch.uint8).T}, ValueError, "window_codes has strides"),
        ({"window_scales": torch.ones(20, 6, dtype=torch.uint8)}, ValueError, r"window_scales.*\[20, 3\]"),
        ({"choice": torch.ones(4, 9, dtype=torch.int64)}, ValueError, r"choice has shape \[4, 9\]; expected \[3, 9\]"),
        ({"choice": torch.ones(9)}, ValueError, r"choice \[9\]"),
        ({"main_codes": None}, ValueError, "main_codes is None; 45 selected"),
        ({"main_scales": torch.ones(12, 8, 3, dtype=torch.uint8)}, ValueError, r"main_scales.*\[12, 8, 6\]"),
        ({"page_table": torch.ones(2, 5, dtype=torch.int32)}, TypeError, "page_table is torch.int32"),
        ({"sequence": torch.ones(2, dtype=torch.int64)}, ValueError, r"sequence has shape \[2\]; expected \[3\]"),
        ({"selected": torch.ones(3, 4)}, TypeError, "selected is torch.float32"),
        ({"turn_cos": torch.ones(3, 4)}, ValueError, "turn_cos"),
        ({"turn_cos": torch.ones(3, 49), "turn_sin": torch.ones(3, 49)}, ValueError, r"\[3, 49\].*48"),
        ({"rotate_query": True}, ValueError, "rotation"),
        ({"splits": -1}, ValueError, "splits is -1"),
        ({"sink": torch.ones(6, device="meta")}, ValueError, "sink is on meta"),
    ],
    ids=lambda value: None,
)
def test_input_that_does_not_fit_is_named(change, error, message):
    arguments = make_case(3, 6, selected=45).arguments(torch.device("cpu")) | change
    with pytest.raises(error, match=message):
        sparse_attention_packed(**arguments)
