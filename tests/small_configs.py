"""Small configurations of the published family for tests: any sharing plan, tiny sizes."""

import dataclasses

from hypothesis import strategies as st

from ds41 import ModelConfig


def with_plan(ratios, kv_sources, index_sources=None, candidate=-1, **changes) -> ModelConfig:
    """The published configuration with another plan; draft layers and Engram left out, sizes kept."""
    values = {
        "num_hidden_layers": len(ratios),
        "compress_ratios": tuple(ratios),
        "kv_source_layer_ids": tuple(kv_sources),
        "index_source_layer_ids": tuple(kv_sources if index_sources is None else index_sources),
        "candidate_source_layer_id": candidate,
        "num_nextn_predict_layers": 0,
        "dspark_target_layer_ids": (),
        "engram_layer_ids": (),
        "engram_num_embeddings": (),
    }
    return dataclasses.replace(ModelConfig.flash(), **(values | changes))


@st.composite
def plans(draw) -> ModelConfig:
    """Any plan: some window-only layers, then groups, each a Full layer and layers that borrow from it."""
    ratios = [0] * draw(st.integers(0, 3))
    kv_sources, index_sources = [], []
    for _ in range(draw(st.integers(1, 4))):
        kv_sources.append(len(ratios))
        index_sources.append(len(ratios))
        ratio = draw(st.sampled_from((1, 2)))
        ratios.append(ratio)
        for reindexes in draw(st.lists(st.booleans(), max_size=3)):
            if reindexes:
                index_sources.append(len(ratios))
            ratios.append(ratio)
    candidate = draw(st.sampled_from((-1, kv_sources[-1])))
    return with_plan(
        ratios,
        kv_sources,
        index_sources,
        candidate,
        head_dim=draw(st.sampled_from((64, 256, 512))),
        index_head_dim=draw(st.sampled_from((64, 128))),
        qk_rope_head_dim=draw(st.sampled_from((32, 64))),
        sliding_window=draw(st.integers(1, 256)),
    )
