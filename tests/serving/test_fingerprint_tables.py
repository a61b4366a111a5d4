"""What a fingerprint sees of Engram tables, wherever they lie."""

import pytest
import torch

from ds41 import Model, ModelConfig, load_checkpoint, save_checkpoint
from ds41.serving import model_fingerprint


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two checkpoints that differ in one row of an Engram table."""
    torch.manual_seed(0)
    model = Model(ModelConfig.nano())
    folder = tmp_path_factory.mktemp("checkpoints")
    save_checkpoint(model, folder / "a")
    model.layers[model.config.engram_layer_ids[0]].engram.embed.weight.data[7] += 1
    save_checkpoint(model, folder / "b")
    return folder / "a", folder / "b"


@pytest.mark.parametrize("engram", ["memory", "disk"])
def test_other_tables_are_another_model(folders, engram):
    first, again, other = (
        model_fingerprint(load_checkpoint(folder, "cache", torch.float32, "cpu", engram))
        for folder in (folders[0], folders[0], folders[1])
    )
    assert first == again != other
