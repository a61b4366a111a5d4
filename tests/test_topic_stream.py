"""The stream of topics has the sizes and frequencies that it says it has, and loads a router unevenly."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ds41 import ModelConfig
from ds41.expert_balance import expert_load
from ds41.moe import Router
from ds41.topic_stream import TopicStream


def test_states_have_the_size_that_a_norm_gives_them():
    stream = TopicStream.zipf(topics=5, hidden=64, spread=0.5)
    states, topics = stream.draw(200, torch.Generator().manual_seed(1))
    assert states.shape == (200, 64)
    torch.testing.assert_close(states.square().mean(-1), torch.ones(200))
    nearest = (states @ stream.centres.T).argmax(-1)
    assert torch.equal(nearest, topics)


def test_topics_come_as_often_as_their_rank_says():
    stream = TopicStream.zipf(topics=4, hidden=2)
    assert stream.shares.tolist() == pytest.approx([12 / 25, 6 / 25, 4 / 25, 3 / 25])
    _, topics = stream.draw(20_000, torch.Generator().manual_seed(0))
    counted = torch.bincount(topics, minlength=4) / 20_000
    torch.testing.assert_close(counted, stream.shares, rtol=0, atol=0.02)


def test_without_spread_all_tokens_of_a_topic_are_one():
    stream = TopicStream.zipf(topics=3, hidden=8, spread=0)
    states, topics = stream.draw(30, torch.Generator().manual_seed(0))
    torch.testing.assert_close(states, stream.centres[topics])


def test_generators_decide_centres_and_draws():
    streams = [TopicStream.zipf(3, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(streams[0].centres, streams[1].centres)
    assert not torch.equal(streams[0].centres, streams[2].centres)
    draws = [streams[0].draw(9, torch.Generator().manual_seed(seed))[0] for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_topics_load_a_router_unevenly():
    config = dataclasses.replace(ModelConfig.nano(), n_routed_experts=64, initializer_range=0.13)
    torch.manual_seed(0)
    router = Router(config)
    generator = torch.Generator().manual_seed(1)

    def busiest(states: torch.Tensor) -> float:
        load = expert_load(router(states).indices, 64)
        return float(load.max() / load.float().mean())

    states, _ = TopicStream.zipf(64, config.hidden_size, spread=0.5, generator=generator).draw(2048, generator)
    assert busiest(states) > 2 * busiest(torch.randn(2048, config.hidden_size, generator=generator))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((0, 8), "topics is 0; expected 1 or more"), ((2, 8, -0.5), r"spread is -0\.5; expected 0 or more")],
)
def test_bad_streams_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        TopicStream.zipf(*arguments)
