"""Several GPUs: weights that add up to the checkpoint, a latent cache that tensor parallelism cannot split."""

import pytest

from ds41 import ModelConfig, ledger, weights
from ds41.deployment import MILLION, room, smallest, spread
from ds41.roofline import DEVICES

FLASH = ModelConfig.flash()


@pytest.mark.parametrize("gpus", [1, 2, 8, 64])
def test_the_shares_add_up_to_the_checkpoint(gpus):
    whole = weights.backbone(FLASH) + weights.engram(FLASH) + weights.drafter(FLASH)
    held = spread(FLASH, gpus, drafter=True, engram=True)
    assert whole.nbytes <= gpus * held.nbytes < whole.nbytes + 8 * gpus


def test_what_data_parallel_attention_repeats():
    tensor, data = spread(FLASH, 8, "tensor"), spread(FLASH, 8, "data")
    assert tensor.experts == data.experts
    assert data.rest == pytest.approx(8 * tensor.rest, abs=64)
    # Outside the experts there are 9.2 GiB, embedding and head among them.
    assert 9.1 * 2**30 < data.rest < 9.3 * 2**30
    assert spread(FLASH, 8, drafter=False).drafter == 0
    assert data.engram == 0


def test_one_gpu_is_the_same_either_way():
    assert spread(FLASH, 1, "tensor") == spread(FLASH, 1, "data")


@pytest.mark.parametrize("storage", ["published", "mxfp8", "v4-fp8keys"])
def test_sessions_follow_from_bytes(storage):
    tensor, data = (room(FLASH, DEVICES["H200"], 8, kind, storage=storage) for kind in ("tensor", "data"))
    for found in (tensor, data):
        assert found.cache == int(0.9 * 141e9) - found.held.nbytes
        assert found.cache // found.request * found.request <= found.cache
    assert tensor.sessions == tensor.cache // tensor.request
    assert data.sessions == 8 * (data.cache // data.request)
    assert tensor.cluster_bytes_per_token == 8 * data.cluster_bytes_per_token


def test_the_request_is_the_ledgers():
    found = room(FLASH, DEVICES["H100"], 8, drafter=False)
    assert found.request == ledger.global_bytes(FLASH, MILLION) + ledger.window_bytes(FLASH)
    drafting = room(FLASH, DEVICES["H100"], 8, drafter=True)
    assert drafting.request - found.request == ledger.window_bytes(FLASH, draft=True) - ledger.window_bytes(FLASH)


def test_the_fewest_gpus():
    found = smallest(FLASH, DEVICES["H200"])
    assert found.fits
    assert found.sessions >= 1
    assert not room(FLASH, DEVICES["H200"], found.gpus // 2).fits
    assert smallest(FLASH, DEVICES["B200"]).gpus < found.gpus < smallest(FLASH, DEVICES["H100"]).gpus


def test_engram_on_the_gpus_costs_gpus():
    assert smallest(FLASH, DEVICES["H200"], engram=True).gpus > smallest(FLASH, DEVICES["H200"]).gpus


def test_what_never_fits_says_so():
    # Data-parallel attention keeps 9 GiB on every GPU, however many there are.
    with pytest.raises(ValueError, match="1,024 × T4 with data parallel attention"):
        smallest(FLASH, DEVICES["T4"], "data", utilization=0.5)
    short = room(FLASH, DEVICES["T4"], 8)
    assert short.cache < 0
    assert short.sessions == 0
    assert not short.fits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": 0}, "gpus is 0"),
        ({"attention": "pipeline"}, "attention is 'pipeline'"),
        ({"storage": "int8"}, "storage is 'int8'; expected one of published"),
        ({"tokens": 0}, "tokens is 0"),
        ({"tokens": -1}, "tokens is -1"),
        ({"utilization": 0}, "utilization is 0"),
        ({"utilization": 1.5}, "utilization is 1.5"),
    ],
)
def test_arguments_are_checked(change, message):
    with pytest.raises(ValueError, match=message):
        room(**{"config": FLASH, "device": DEVICES["H100"], "gpus": 8, **change})
