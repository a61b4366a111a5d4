"""The single-pass hyper-connection site against the model's expand, collapse, norm and predictor."""

from dataclasses import replace

import pytest
import torch

from ds41.config import ModelConfig
from ds41.hyper_connections import Coefficients, HyperConnection, collapse, expand, first_weights, sinkhorn
from ds41.kernels import hyper_sweep
from ds41.kernels.aot import all_cases
from ds41.kernels.hyper_connections import (
    hyper_collapse,
    hyper_collapse_cost,
    hyper_connection_site,
    hyper_connection_site_cost,
)
from ds41.kernels.hyper_finish import finish_launch
from ds41.kernels.hyper_site import MIXES
from ds41.kernels.hyper_sweep import Site, SweepTiling, coefficient_shapes, sweep_launch
from ds41.mhc_traffic import SINGLE_PASS
from ds41.norm import rms_norm

EPS, NORM_EPS, ITERATIONS = 1e-6, 1e-20, 20
TYPES = [torch.float32, torch.bfloat16, torch.float16]
each_type = pytest.mark.parametrize("dtype", TYPES, ids=lambda t: str(t).removeprefix("torch."))
RESULTS = ("x", "streams", "pre", "post", "comb")


class Case:
    """Random operands of one site. post and comb are such as a site predicts."""

    def __init__(self, tokens: int, channels: int, dtype: torch.dtype, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        magnitude = torch.exp2(torch.randint(-4, 5, (tokens, 1, 1), generator=generator))
        self.streams = (normal(tokens, 4, channels) * magnitude).to(dtype)
        self.y = (normal(tokens, channels) * magnitude[:, 0]).to(dtype)
        self.post = 2 * torch.sigmoid(normal(tokens, 4))
        self.comb = sinkhorn(normal(tokens, 4, 4), ITERATIONS, EPS)
        self.pre = torch.sigmoid(normal(tokens, 4)) + EPS
        self.fn = normal(24, 4 * channels) / channels**0.5
        self.base = normal(24)
        self.scale = torch.tensor([0.7, 1.1, 0.9])
        self.weight = (1 + 0.1 * normal(channels)).to(dtype)

    def operands(self, device, update: bool = True) -> list:
        update = [self.y, self.post, self.comb] if update else [None] * 3
        tensors = [self.streams, *update, self.pre, self.fn, self.base, self.scale, self.weight]
        return [None if t is None else t.to(device) for t in tensors]

    def coefficients(self, streams: torch.Tensor, in_double: bool) -> Coefficients:
        """What the model predicts from new streams, or the same in float64."""
        if not in_double:
            site = HyperConnection(replace(ModelConfig.nano(), hidden_size=streams.shape[2]))
            for name in ("fn", "base", "scale"):
                setattr(site, name, torch.nn.Parameter(getattr(self, name)))
            return Coefficients(*(t.detach() for t in site(streams)))
        flat = streams.double().flatten(1)
        mixes = flat @ self.fn.double().T * torch.rsqrt(flat.square().mean(-1, keepdim=True) + NORM_EPS)
        pre, post, comb = mixes.split((4, 4, 16), dim=-1)
        base, scale = self.base.double(), self.scale.double()
        return Coefficients(
            torch.sigmoid(pre * scale[0] + base[:4]) + EPS,
            2 * torch.sigmoid(post * scale[1] + base[4:8]),
            sinkhorn((comb * scale[2] + base[8:]).unflatten(-1, (4, 4)), ITERATIONS, EPS),
        )


def run(case: Case, device, update: bool = True) -> dict[str, torch.Tensor]:
    results = hyper_connection_site(*case.operands(device, update), NORM_EPS, EPS, ITERATIONS)
    return dict(zip(RESULTS, (t.cpu() for t in results), strict=True))


def assert_right(case: Case, got: dict[str, torch.Tensor], update: bool = True) -> None:
    """Streams as near to the exact ones as the model's; everything else is judged by the streams that came out."""
    dtype = case.streams.dtype
    if update:
        exact = torch.einsum("njk,njd->nkd", case.comb.double(), case.streams.double())
        exact += case.post.double()[:, :, None] * case.y.double()[:, None]
        plain = expand(case.streams, case.y, Coefficients(case.pre, case.post, case.comb))
        errors = [(t.double() - exact).abs() for t in (got["streams"], plain)]
        assert errors[0].max() <= 2 * errors[1].max() + 1e-12
    else:
        assert torch.equal(got["streams"], case.streams)
    assert got["streams"].dtype == got["x"].dtype == dtype

    for name, exact in case.coefficients(got["streams"], in_double=True)._asdict().items():
        assert got[name].dtype == torch.float32
        torch.testing.assert_close(got[name].double(), exact, rtol=1e-5, atol=0)

    streams = got["streams"].double()
    row = torch.einsum("nk,nkd->nd", case.pre.double(), streams)
    exact = rms_in_double(row, case.weight)
    plain = rms_norm(collapse(got["streams"], case.pre), case.weight, NORM_EPS)
    errors = [(t.double() - exact).abs() for t in (got["x"], plain)]
    assert errors[0].max() <= 2 * errors[1].max() + 1e-12


def rms_in_double(row: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return row * torch.rsqrt(row.square().mean(-1, keepdim=True) + NORM_EPS) * weight.double()


@each_type
@pytest.mark.parametrize(("tokens", "channels"), [(1, 64), (3, 192), (2, 1000)], ids=str)
def test_a_site_in_one_sweep(dtype, tokens, channels, device):
    case = Case(tokens, channels, dtype)
    assert_right(case, run(case, device))


@each_type
def test_the_first_site_has_nothing_to_write(dtype, device):
    case = Case(3, 96, dtype)
    case.pre = first_weights(3, 4)
    got = run(case, device, update=False)
    assert_right(case, got, update=False)
    torch.testing.assert_close(got["x"], rms_norm(case.streams[:, 0], case.weight, NORM_EPS))


@pytest.fixture(params=["channels split", "one launch"])
def programs(request, monkeypatch) -> str:
    """Both forms of a site, for shapes with more than one tile of channels."""
    monkeypatch.setattr(hyper_sweep, "_PROGRAMS", 1000 if request.param == "channels split" else 1)
    return request.param


def site_on(case: Case, device, poison: float) -> Site:
    """Operands and results on the device, the results full of poison."""
    streams, *rest = case.operands(device)
    tokens = len(streams)
    results = [torch.full_like(rest[0], poison), torch.full_like(streams, poison)]
    results += [torch.full(shape, poison, device=device) for shape in coefficient_shapes(tokens)]
    return Site(streams, *rest, NORM_EPS, EPS, ITERATIONS, *results)


def run_site(site: Site, level: int) -> dict[str, torch.Tensor]:
    """The launches for compute capability ``level``, with poison in the parts too."""
    tokens, _, channels = site.streams.shape
    splits = SweepTiling.of(tokens, channels).splits
    parts = None if splits == 1 else torch.full((splits, tokens, MIXES.value), float("nan"), device=site.x.device)
    sweep_launch(site, parts, level).run()
    if parts is not None:
        finish_launch(site, parts).run()
    results = (site.x, site.new_streams, site.new_pre, site.new_post, site.new_comb)
    return dict(zip(RESULTS, (t.cpu() for t in results), strict=True))


@each_type
@pytest.mark.parametrize("level", [75, 80], ids=["sums", "matrix"])
def test_both_forms_and_both_products_fill_all_of_their_results(programs, level, dtype, device):
    """Also the products that matrix instructions get; under the interpreter their operands are what is tested."""
    if level == 80 and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0):
        pytest.skip("this device has no TF32")
    tokens = 17 if dtype == torch.bfloat16 and level == 80 else 2
    case = Case(tokens, 200, dtype, seed=1)
    assert SweepTiling.of(tokens, 200).splits == (4 if programs == "channels split" else 1)
    assert_right(case, run_site(site_on(case, device, float("nan")), level))


def test_neighbouring_tokens_are_not_written(programs, device):
    """Results lie in the middle of larger tensors, with more room than a tile of tokens on either side."""
    case, margin = Case(3, 72, torch.bfloat16), 20
    site = site_on(case, device, float("nan"))
    names = ("x", "new_streams", "new_pre", "new_post", "new_comb")
    around = {
        name: torch.full((3 + 2 * margin, *getattr(site, name).shape[1:]), 7.0, dtype=getattr(site, name).dtype)
        for name in names
    }
    around = {name: buffer.to(device) for name, buffer in around.items()}
    site = replace(site, **{name: buffer[margin:-margin] for name, buffer in around.items()})
    assert_right(case, run_site(site, 75))
    for buffer in around.values():
        assert (buffer[:margin] == 7).all()
        assert (buffer[-margin:] == 7).all()


@pytest.mark.parametrize("update", [True, False])
@each_type
def test_the_way_out_after_the_last_site(programs, dtype, update, device):
    case = Case(5, 136, dtype, seed=2)
    streams, y, post, comb, pre, *_, weight = case.operands(device, update)
    x = hyper_collapse(streams, y, post, comb, pre, weight, NORM_EPS).cpu()
    new = expand(case.streams, case.y, Coefficients(case.pre, case.post, case.comb)) if update else case.streams
    expected = rms_norm(collapse(new, case.pre), case.weight, NORM_EPS)
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(x, expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(x, run(case, device, update)["x"])


STRIDED = {
    "tokens with gaps": lambda x: torch.stack([x, x + 1], dim=1)[:, 0],
    "every second channel": lambda x: torch.stack([x, x + 1], dim=-1)[..., 0],
    "channels first": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
}


@pytest.mark.parametrize("view", STRIDED.values(), ids=STRIDED.keys())
def test_any_strides(view, device):
    case = Case(4, 72, torch.bfloat16, seed=3)
    expected = run(case, device)
    for name in ("streams", "y", "post", "comb", "pre"):
        setattr(case, name, view(getattr(case, name)))
        assert not getattr(case, name).is_contiguous()
    got = run(case, device)
    assert all(torch.equal(got[name], expected[name]) for name in RESULTS)


def test_results_are_no_views_of_what_went_in(device):
    operands = Case(2, 64, torch.float32).operands(device, update=False)
    results = hyper_connection_site(*operands, NORM_EPS, EPS, ITERATIONS)
    storages = [t.untyped_storage().data_ptr() for t in (*results, *(o for o in operands if o is not None))]
    assert len(set(storages)) == len(storages)


def test_no_tokens_launch_nothing(device, monkeypatch):
    monkeypatch.setattr("ds41.kernels.launch.Launch.run", lambda self: pytest.fail("launched"))
    case = Case(0, 64, torch.bfloat16)
    results = run(case, device)
    assert [list(results[name].shape) for name in RESULTS] == [[0, 64], [0, 4, 64], [0, 4], [0, 4], [0, 4, 4]]
    streams, y, post, comb, pre, *_, weight = case.operands(device)
    assert hyper_collapse(streams, y, post, comb, pre, weight, NORM_EPS).shape == (0, 64)


def test_zero_streams_stay_finite(device):
    case = Case(2, 64, torch.float16)
    for name in ("streams", "y"):
        setattr(case, name, torch.zeros_like(getattr(case, name)))
    got = run(case, device)
    assert (got["x"] == 0).all()
    torch.testing.assert_close(got["pre"], torch.sigmoid(case.base[:4]).expand(2, 4) + EPS)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_nan_stays_in_its_token(device):
    case = Case(3, 64, torch.float32)
    expected = run(case, device)
    case.streams[1, 2, 5] = float("nan")
    got = run(case, device)
    for name in RESULTS:
        assert torch.equal(got[name][::2], expected[name][::2])
        assert torch.isnan(got[name][1]).any()


def test_published_coefficients(device):
    """Mixes (i - 12) / 10 with scales 0.5, 0.7, 0.9 and bases of alternating sign, calculated by hand."""
    case = Case(1, 64, torch.float32)
    case.streams = torch.ones(1, 4, 64)
    case.fn = ((torch.arange(24) - 12) / 10 / 256)[:, None].repeat(1, 256)
    case.base = torch.tensor([(-1) ** i * 0.05 * i for i in range(24)])
    case.scale = torch.tensor([0.5, 0.7, 0.9])
    got = run(case, device, update=False)
    close = {"rtol": 0, "atol": 1e-6}
    torch.testing.assert_close(got["pre"][0], torch.tensor([0.3543447, 0.3543447, 0.4013133, 0.3543447]), **close)
    torch.testing.assert_close(got["post"][0], torch.tensor([0.8219191, 0.6460083, 0.9400719, 0.6636245]), **close)
    row = torch.tensor([0.1771723, 0.3228272, 0.1771722, 0.3228273])
    torch.testing.assert_close(got["comb"][0, 0], row, **close)


def test_offsets_beyond_32_bits(device):
    """Tokens and streams whose offsets pass 2^31; in the middle of a buffer, so that a wrapped one stays inside."""
    case = Case(2, 64, torch.float16, seed=4)
    expected = run(case, device)
    buffer = torch.empty(2**32 + 2**26, dtype=torch.float16, device=device)
    streams = buffer.as_strided((2, 4, 64), (2**31 + 2**20, 2**24, 1), storage_offset=2**20)
    streams.copy_(case.streams)
    case.streams = streams
    got = run(case, device)
    assert all(torch.equal(got[name], expected[name]) for name in RESULTS)


def test_repeated_launches_agree(programs, device):
    case = Case(2, 136, torch.bfloat16)
    results = [run(case, device) for _ in range(20 if device.type == "cuda" else 2)]
    assert all(torch.equal(result[name], results[0][name]) for result in results[1:] for name in RESULTS)


def test_channels_are_split_only_where_tokens_are_few():
    many, few, one = (SweepTiling.of(tokens, 5120) for tokens in (8192, 64, 1))
    assert (many.tiles, many.splits, many.chunks) == (512, 1, 80)
    assert few.tiles * few.splits >= 100
    assert (one.tiles, one.splits, one.chunks) == (1, 80, 1)
    for tiling in (many, few, one, SweepTiling.of(300, 5120), SweepTiling.of(5, 1000)):
        assert tiling.splits * tiling.chunks >= 5120 // 64 or tiling.splits * tiling.chunks == 16


def test_costs_are_those_of_the_traffic_count():
    """Streams, y, new streams and x of one token are the (2n + 2) d values that the book counts."""
    config = ModelConfig.flash()
    d, n = config.hidden_size, config.hc_mult
    moved = [hyper_connection_site_cost(tokens, d, 2)[0] for tokens in (1, 2)]
    coefficients = 4 * 2 * (n + n + n * n)
    assert moved[1] - moved[0] == 2 * SINGLE_PASS.values(config) + coefficients
    assert moved[0] - (moved[1] - moved[0]) == 4 * (24 * n * d + 27 + d)
    assert hyper_connection_site_cost(3, d, 2)[1] == 2 * 3 * d * (24 * n + n * (n + 1) + 2 * n + 3)
    assert hyper_collapse_cost(1, d, 2)[0] == (n + 2) * d * 2 + 4 * (2 * n + n * n) + 4 * d


def test_compile_cases_are_the_published_site():
    config = ModelConfig.flash()
    expected = {"CHANNELS": config.hidden_size, "NORM_EPS": config.rms_norm_eps, "EPS": config.hc_eps}
    expected["ITERATIONS"] = config.hc_sinkhorn_iters
    cases = [case for case in all_cases() if case.name.startswith("hyper_")]
    assert cases
    for case in cases:
        assert {name: case.launch.constants[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"streams": torch.ones(2, 3, 64)}, r"\[2, 3, 64\].*tokens, 4, channels"),
        ({"streams": torch.ones(2, 4, 64, dtype=torch.float64)}, "streams are torch.float64"),
        ({"y": None}, "come together"),
        ({"y": torch.ones(2, 32)}, r"y is torch.float32 \[2, 32\]; expected \[2, 64\]"),
        ({"comb": torch.ones(2, 16)}, r"comb is.*\[2, 16\].*\[2, 4, 4\]"),
        ({"pre": torch.ones(2, 4, dtype=torch.bfloat16)}, "pre is torch.bfloat16"),
        ({"fn": torch.ones(24, 64)}, r"fn is.*\[24, 64\].*\[24, 256\]"),
        ({"fn": torch.ones(256, 24).T}, "fn has strides"),
        ({"base": torch.ones(24, dtype=torch.float64)}, "base is torch.float64"),
        ({"norm_weight": torch.ones(63)}, r"norm_weight is torch.float32 \[63\]"),
        ({"iterations": 0}, "iterations is 0"),
    ],
    ids=lambda value: None,
)
def test_names_what_it_cannot_take(arguments, message):
    names = ("streams", "y", "post", "comb", "pre", "fn", "base", "scale", "norm_weight")
    good = dict(zip(names, Case(2, 64, torch.float32).operands("cpu"), strict=True))
    with pytest.raises(ValueError, match=message):
        hyper_connection_site(**{**good, "norm_eps": NORM_EPS, "eps": EPS, "iterations": ITERATIONS, **arguments})
