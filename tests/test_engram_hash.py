"""The hash and its windows: the released constants, rows worked by hand, and any way to cut a text into chunks."""

import dataclasses
import json

import golden_io
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ds41 import ConfigError, ModelConfig
from ds41.engram import DEAD, Hasher, hash_constants, hashing, history_after, look_back, new_history
from ds41.tokenizer import byte_tokenizer, compression_map, load_tokenizer

FLASH = ModelConfig.flash()
NANO = ModelConfig.nano()


def flash_hasher() -> Hasher:
    """The released constants; only the size of the map matters, and that the pad token is compressed id 2."""
    token_map = torch.arange(FLASH.vocab_size) % FLASH.engram_compressed_vocab_size
    return Hasher(FLASH, token_map)


def nano_hasher() -> Hasher:
    return Hasher(NANO, compression_map(byte_tokenizer(), NANO.vocab_size))


def windows_of(ids: list[int], max_ngram: int = 4) -> torch.Tensor:
    """Windows of one whole sequence."""
    n = len(ids)
    one = torch.zeros(n, dtype=torch.int64)
    return look_back(torch.tensor(ids, dtype=torch.int64), torch.arange(n), one, new_history(1, max_ngram))


def test_the_released_constants():
    published = json.loads((golden_io.FOLDER / "flash_engram_constants.json").read_text())
    constants = hash_constants(FLASH)
    assert constants.primes.tolist() == published["primes"]
    assert constants.multipliers.tolist() == published["multipliers"]
    assert constants.primes.reshape(2, -1).sum(1).tolist() == [384006168, 384016682]
    assert constants.primes[0, 0, :2].tolist() == [16000057, 16000079]
    assert constants.primes[1, 2, -1] == 16000889
    assert constants.offsets[:, :2].tolist() == [[0, 16000057], [0, 16000477]]
    assert all(array.dtype == np.int64 for array in constants)


@pytest.mark.parametrize("model", golden_io.MODELS)
def test_the_reference_constants_and_rows(model):
    config = ModelConfig.from_json(golden_io.FOLDER / model / "config.json")
    reference = golden_io.load(model, "fp32")
    constants = hash_constants(config)
    for name, array in constants._asdict().items():
        assert torch.equal(torch.from_numpy(array), reference[f"engram.{name}"]), name
    hasher = Hasher(config, compression_map(load_tokenizer(golden_io.FOLDER / model), config.vocab_size))
    assert hasher.pad_id == int(reference["engram.pad_compressed_id"])
    for mode in golden_io.MODES:
        reference = golden_io.load(model, mode)
        rows = hasher.rows(windows_of(hasher.compress(reference["input_ids"]).tolist()))
        for place, layer in enumerate(config.engram_layer_ids):
            assert torch.equal(rows[layer], reference["engram.row_ids"][:, place]), (mode, layer)


def test_rows_of_a_stream_of_the_released_model():
    rows = flash_hasher().rows(windows_of([5, 7, 11, 13, 17]))
    columns = [0, 1, 2, 8, 9, 16, 17]
    assert rows[1][0, columns].tolist() == [5412672, 18319159, 35492627, 143494632, 151789366, 256353435, 276423911]
    assert rows[1][4, columns].tolist() == [12341303, 23527019, 37635120, 137746435, 144079794, 259224166, 273108917]
    assert rows[14][0, :3].tolist() == [6939818, 27264717, 45254833]
    assert rows[14][4, :3].tolist() == [2607190, 16704444, 43223337]
    assert {layer: tuple(ids.shape) for layer, ids in rows.items()} == {1: (5, 24), 14: (5, 24)}
    beyond = flash_hasher().rows(windows_of([5, DEAD, 11]))
    assert beyond[1][2, [0, 1, 8]].tolist() == [5935489, 27383162, 134799720]


def test_a_dead_token_hides_all_that_lies_behind_it():
    hasher = flash_hasher()
    with_words, without = hasher.rows(windows_of([5, 7, DEAD, 11, 13])), hasher.rows(windows_of([9, 8, DEAD, 11, 13]))
    fresh = hasher.rows(windows_of([11, 13]))
    for layer in FLASH.engram_layer_ids:
        assert torch.equal(with_words[layer][2:], without[layer][2:])
        assert torch.equal(with_words[layer][3:], fresh[layer])


@given(st.lists(st.integers(DEAD, 242), min_size=1, max_size=30))
def test_rows_equal_unbounded_integer_arithmetic(ids):
    constants = hash_constants(NANO)
    rows = nano_hasher().rows(windows_of(ids))
    for place, layer in enumerate(NANO.engram_layer_ids):
        multipliers, primes = constants.multipliers[place].tolist(), constants.primes[place].tolist()
        for position in range(len(ids)):
            seen = [ids[position - k] if k <= position else DEAD for k in range(4)]
            blocked = seen.index(DEAD) if DEAD in seen else 4
            seen[blocked:] = [2] * (4 - blocked)
            expected, offset, mixed = [], 0, seen[0] * multipliers[0]
            for order in range(3):
                mixed ^= seen[order + 1] * multipliers[order + 1]
                for prime in primes[order]:
                    expected.append(mixed % prime + offset)
                    offset += prime
            assert rows[layer][position].tolist() == expected


def test_largest_product_needs_compressed_ids_and_int64():
    """The largest multiplier that the bound allows, 2 (B - 1) + 1, times the largest compressed id."""
    hasher, largest, prime = flash_hasher(), 93078876567781, 16000057
    hasher.multipliers.zero_()
    hasher.multipliers[0, 0] = largest
    windows = torch.tensor([[99091, 0, 0, 0]])
    assert 99091 * largest == 9223278957977987071 < 2**63
    assert int(hasher.rows(windows)[1][0, 0]) == 3755251
    assert int(float(99091 * largest) % prime) == 3755252
    with pytest.raises(ValueError, match=r"compressed id \[0, 1\] is 129279; expected -1 to 99091"):
        hasher.rows(torch.tensor([[0, 129279, 0, 0]]))


def test_ids_outside_the_vocabulary_never_wrap():
    hasher = nano_hasher()
    assert hasher.compress(torch.tensor([0, 271])).tolist() == [0, 242]
    for bad in (-1, 272, -272):
        with pytest.raises(ValueError, match=rf"token id \[1\] is {bad}; expected 0 to 271"):
            hasher.compress(torch.tensor([5, bad]))
    with pytest.raises(ValueError, match=r"compressed id \[0, 0\] is -2; expected -1 to 242"):
        hasher.rows(torch.tensor([[-2, 0, 0, 0]]))
    with pytest.raises(ValueError, match=r"token_ids are torch.float32; expected torch.int64"):
        hasher.compress(torch.tensor([5.0]))
    with pytest.raises(ValueError, match=r"windows are \[1, 3\]; expected \[tokens, 4\]"):
        hasher.rows(torch.zeros(1, 3, dtype=torch.int64))


def test_image_positions_are_dead():
    hasher = nano_hasher()
    compressed = hasher.compress(torch.tensor([20, 4, 4, 21]), dead=torch.tensor([False, True, True, False]))
    assert compressed.tolist() == [int(hasher.token_map[20]), DEAD, DEAD, int(hasher.token_map[21])]


@pytest.mark.parametrize("chunks", [[5], [2, 3], [1, 1, 1, 1, 1]])
def test_windows_reach_across_chunks(chunks):
    windows, history, start = [], new_history(1, 4), 0
    for size in chunks:
        ids = torch.tensor([11, 12, 13, 14, 15])[start : start + size]
        sequence = torch.zeros(size, dtype=torch.int64)
        windows.append(look_back(ids, torch.arange(start, start + size), sequence, history))
        history = history_after(windows[-1], sequence, history)
        start += size
    windows = torch.cat(windows)
    assert windows[2].tolist() == [13, 12, 11, DEAD]
    assert windows[4].tolist() == [15, 14, 13, 12]
    assert history.tolist() == [[15, 14, 13]]


@st.composite
def cut_batches(draw):
    """Sequences with dead tokens, and for each step how many tokens every one of them gets."""
    ids = st.one_of(st.just(DEAD), st.integers(0, 242))
    sequences = draw(st.lists(st.lists(ids, max_size=12), min_size=1, max_size=3))
    left, steps = [len(sequence) for sequence in sequences], []
    while any(left):
        steps.append([draw(st.integers(0, count)) for count in left])
        left = [count - taken for count, taken in zip(left, steps[-1], strict=True)]
        if not any(steps[-1]):
            steps[-1], left = [a + b for a, b in zip(steps[-1], left, strict=True)], [0] * len(left)
    return sequences, steps


@given(cut_batches(), st.integers(2, 5), st.data())
def test_any_split_gives_the_same_windows(batch, max_ngram, data):
    sequences, steps = batch
    history = new_history(len(sequences), max_ngram)
    done, found = [0] * len(sequences), [[] for _ in sequences]
    for step in steps:
        order = data.draw(st.permutations(range(len(sequences))))
        tokens = [(s, done[s] + i) for s in order for i in range(step[s])]
        sequence = torch.tensor([s for s, _ in tokens], dtype=torch.int64)
        positions = torch.tensor([p for _, p in tokens], dtype=torch.int64)
        compressed = torch.tensor([sequences[s][p] for s, p in tokens], dtype=torch.int64)
        windows = look_back(compressed, positions, sequence, history)
        history = history_after(windows, sequence, history)
        for (s, _), window in zip(tokens, windows.tolist(), strict=True):
            found[s].append(window)
        done = [a + b for a, b in zip(done, step, strict=True)]
    for ids, windows, carried in zip(sequences, found, history.tolist(), strict=True):
        padded = [DEAD] * max_ngram + ids
        for position, window in enumerate(windows):
            assert window == padded[position + 1 : position + 1 + max_ngram][::-1]
        assert len(windows) == len(ids)
        assert carried == padded[: len(ids) : -1][: max_ngram - 1] if ids else [DEAD] * (max_ngram - 1)


@pytest.mark.parametrize("kept", range(6))
def test_the_history_after_a_rejected_draft_is_a_window(kept):
    ids = torch.tensor([31, 32, 33, 41, 42, 43, 44, 45])
    one = torch.zeros(8, dtype=torch.int64)
    windows = look_back(ids, torch.arange(8), one, new_history(1, 4))
    never_drafted = look_back(ids[: 3 + kept], torch.arange(3 + kept), one[: 3 + kept], new_history(1, 4))
    history = history_after(never_drafted, one[: 3 + kept], new_history(1, 4))
    assert torch.equal(windows[3 + kept - 1, :-1], history[0])


def test_a_new_sequence_does_not_read_what_the_last_one_left():
    stale = torch.tensor([[7, 8, 9]])
    windows = look_back(torch.tensor([1, 2]), torch.arange(2), torch.zeros(2, dtype=torch.int64), stale)
    assert windows.tolist() == [[1, DEAD, DEAD, DEAD], [2, 1, DEAD, DEAD]]


@pytest.mark.parametrize(
    ("positions", "sequence", "message"),
    [
        ([0, 2], [0, 0], "token 1 follows position 0 of sequence 0 and has position 2; expected the next one"),
        ([0, 0, 1], [0, 1, 0], "do not lie next to each other"),
        ([0, 1], [0, 2], "sequence holds 2; there are histories 0 to 1"),
        ([0, 1], [-1, 0], "sequence holds -1; there are histories 0 to 1"),
        ([-1, 0], [0, 0], "positions hold -1; expected 0 or more"),
        ([0], [0, 0], r"positions is torch.int64 \[1\]; expected torch.int64 \[2\]"),
    ],
)
def test_disordered_tokens_are_refused(positions, sequence, message):
    ids = torch.zeros(len(sequence), dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        look_back(ids, torch.tensor(positions), torch.tensor(sequence), new_history(2, 4))


def test_constants_move_and_never_change():
    hasher, fresh = flash_hasher(), flash_hasher()
    for changed in (
        hasher.to(torch.bfloat16),
        hasher.half(),
        hasher.type(torch.float32),
        hasher.to_empty(device="cpu"),
    ):
        for name, buffer in fresh.named_buffers():
            assert buffer.dtype == torch.int64
            assert torch.equal(getattr(changed, name), buffer), name
    assert not hasher.state_dict()
    assert not list(hasher.parameters())
    with torch.device("meta"):
        built = Hasher(NANO, compression_map(byte_tokenizer(), NANO.vocab_size))
    assert torch.equal(built.rows(windows_of([1, 2, 3]))[1], nano_hasher().rows(windows_of([1, 2, 3]))[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engram_num_embeddings": (24064, 24337)}, r"engram_num_embeddings\[1\] is 24337; .* layer 3 .* sum to 24336"),
        ({"engram_compressed_vocab_size": 0}, "engram_compressed_vocab_size is 0; expected 1 to"),
        ({"engram_compressed_vocab_size": 2**62}, f"engram_compressed_vocab_size is {2**62}; expected 1 to"),
        ({"engram_compressed_vocab_size": 99092}, "has 243 compressed ids from 0 to 242; .* is 99092"),
        ({"engram_pad_token_id": 272}, "engram_pad_token_id is 272; expected 0 to 271"),
        ({"engram_layer_ids": (), "engram_num_embeddings": ()}, "nothing to hash for"),
        ({"vocab_size": 300}, r"the token map is torch.int64 \[272\]; expected torch.int64 \[300\]"),
    ],
)
def test_constants_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        Hasher(dataclasses.replace(NANO, **changes), compression_map(byte_tokenizer(), 272))


def test_another_random_stream_is_noticed(monkeypatch):
    monkeypatch.setattr(hashing, "_SEED_STEP", 10008)
    hashing._check_generator.cache_clear()
    with pytest.raises(RuntimeError, match="draws other numbers"):
        hash_constants(NANO)


def test_a_missing_map_is_named():
    hasher = Hasher(NANO)
    for use in (lambda: hasher.compress(torch.tensor([1])), lambda: hasher.rows(torch.zeros(1, 4, dtype=torch.int64))):
        with pytest.raises(RuntimeError, match="has no token map"):
            use()
    hasher.set_token_map(compression_map(byte_tokenizer(), 272).numpy())
    assert hasher.rows(hasher.compress(torch.tensor([[1, 2, 3, 4]])))[1].shape == (1, 6)
