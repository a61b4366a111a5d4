"""Exercises: right answers pass, typical mistakes get their own hint, and nothing gives an answer away."""

import importlib
import math
import pkgutil
import re
from pathlib import Path

import nbformat
import pytest
import torch

from ds41 import exercises
from ds41.exercises import check, verify

BOOK = Path(__file__).resolve().parent.parent / "book"
CHAPTERS = sorted(
    module.name.removeprefix("chapter_")
    for module in pkgutil.iter_modules(exercises.__path__)
    if module.name.startswith("chapter_")
)


def names_of(chapter: str) -> list[str]:
    importlib.import_module(f"ds41.exercises.chapter_{chapter}")
    return sorted(name for name in exercises._exercises if name.startswith(f"{chapter}."))


NAMES = [name for chapter in CHAPTERS for name in names_of(chapter)]


def index_keys_read(tokens, topk=512, pool=16_384, pairs=True):
    """Bytes of index keys that a step reads: three layers over pairs, one over tokens, four over the pool."""
    sizes = [tokens // 2 if pairs else tokens] * 3 + [tokens] + [min(tokens, pool)] * 4
    return 68 * sum(size for size in sizes if size > topk)


def e4m3(byte, subnormals=True, special=True):
    sign, exponent, mantissa = -1.0 if byte & 128 else 1.0, byte >> 3 & 15, byte & 7
    if special and byte & 127 == 127:
        return math.nan
    if subnormals and exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def route(logits, bias, k, weigh="scores", scale=1.5, choose="both"):
    scores = [math.sqrt(math.log(1 + math.exp(logit))) for logit in logits]
    keys = [score + one for score, one in zip(scores, bias, strict=True)] if choose == "both" else scores
    chosen = sorted(range(len(keys)), key=keys.__getitem__, reverse=True)[:k]
    weights = keys if weigh == "keys" else scores
    total = sum(weights[e] for e in chosen) if scale else 1
    return chosen, [(scale or 1) * weights[e] / total for e in chosen]


ACTIVE_08 = 15_468_670_064
EXPERT_08 = 3 * 2304 * 5120


PRIMES_09 = (16000057, 16000189, 16000339)
# Rows of layer 1 before the first column of each order: none, eight columns, sixteen.
OFFSETS_09 = (0, 128000880, 256002934)
MULTIPLIERS_09 = (76632096046245, 4839876093313, 35959672319349, 73987337458391)


def engram_rows(window, offsets=OFFSETS_09, pad=2, block=True, rounds=int):
    """Rows of head 0 of the 2-, 3- and 4-gram in the released layer 1."""
    seen, hidden = [], False
    for one in window:
        hidden = one == -1 or (hidden and block)
        seen.append(pad if hidden else one)
    products = [int(rounds(one) * rounds(by)) for one, by in zip(seen, MULTIPLIERS_09, strict=True)]
    mixed, rows = products[0], []
    for product, prime, offset in zip(products[1:], PRIMES_09, offsets, strict=True):
        mixed ^= product
        rows.append(mixed % prime + offset)
    return rows


def closed_groups(token, ratio):
    """First tokens of the groups that are complete when the token attends."""
    return [first for first in range(0, token + 1, ratio) if first + ratio - 1 <= token]


def selected(scores, count, by_index=True, low_first=True, finite=True):
    """The rule of selection by plain sorting; each flag off is one mistake."""
    allowed = [i for i, score in enumerate(scores) if not finite or score > -math.inf]
    best = sorted(allowed, key=lambda i: (-scores[i], i if low_first else -i))[:count]
    return sorted(best) if by_index else best


def updated_streams(streams, y, post, comb):
    """One token's streams behind a site, entry by entry."""
    n = len(streams)
    return torch.stack([post[k] * y + sum(comb[j][k] * streams[j] for j in range(n)) for k in range(n)])


def combined(first, second, fades=True, largest=max):
    """Two partial softmaxes as one; fades off forgets that their maxima differ."""
    top = largest(first[0], second[0])
    weights = [math.exp(part[0] - top) if fades else 1.0 for part in (first, second)]
    return top, *(weights[0] * first[i] + weights[1] * second[i] for i in (1, 2))


def combined_with_infinities(first, second):
    """What comes of a maximum that starts at minus infinity."""
    top, total, value = combined(first, second)
    return (top, total, math.nan if min(first[0], second[0]) < -1e29 else value)


def rows_seen(hit, position, fed=128, window=128, itself=1):
    """Window rows of a token behind a replayed hit."""
    return position - max(0, hit - fed, position - window + 1) + itself


def entries_touched(first, tokens, ratio=2, last=1):
    """Entries of a source that hold any of some tokens."""
    return (first + tokens - last) // ratio - first // ratio + 1


def prints_17(printed, value, decimals=None, commas=True):
    """Whether a value prints as a number does, with as many decimals and without its commas."""
    plain = printed.replace(",", "") if commas else printed.split(",")[0]
    places = len(plain.partition(".")[2]) if decimals is None else decimals
    return float(f"{float(value):.{places}f}") == float(plain)


def missed_16(score, edge, deviation, sign=1, noisy=True):
    """How often an entry ends below the edge; flags are mistakes."""
    below = (1 + math.erf(sign * (edge - score) / deviation / math.sqrt(2))) / 2
    return below if noisy else float(score < edge)


V4_PER_TOKEN = 21 * 652 / 4 + 20 * 584 / 128
V4_WINDOWS = 43 * 128 * 584
SESSION = 890 * 65_536


# Worked out here by hand or by other code than the library's; several forms of the same answer are all right.
def stand_and_replace(target, drafter):
    left = [max(a - b, 0.0) for a, b in zip(target, drafter, strict=True)]
    stand = 1 - sum(left)
    return stand, [one / sum(left) for one in left] if sum(left) > 1e-9 else list(target)


def span_letters(columns, rows):
    return "S" + rows * (columns * "I" + "N") + "E"


RIGHT = {
    "01.1": [40 * 2**30 // (SESSION + 40 * 128 * 528), 703.0],
    "01.2": [5189],
    "01.3": [V4_WINDOWS / (8 * 890 - V4_PER_TOKEN), 891, 892],
    "01.4": [(21 * 356 / 4 + 20 * 288 / 128) / 890, 2.15],
    "01.5": [index_keys_read],
    "03.1": [(20, 28), [20, 28]],
    "03.2": [178 + 356],
    "03.3": [closed_groups],
    "03.4": [4 * 16_384 / (3 * 2**19 + 2**20 + 4 * 16_384), 0.02439],
    "03.5": [selected],
    "16.1": [3, 3.0],
    "16.2": [missed_16],
    "16.3": [381],
    "16.4": [24, 6 / 0.25],
    "16.5": [1 - 0.95**5, 0.226],
    "17.1": [100 * (1440 / 890 - 1), 61.8],
    "17.2": [prints_17],
    "17.3": [2 * 4 * 16_384 / 3, 43_691],
    "17.4": [2.5 * (272 + 68), 850],
    "15.1": [2 * math.log(36), 7.167],
    "15.2": [20 * 356 + 18 * 178, 10_324.0],
    "15.3": [0.55],
    "15.4": [entries_touched],
    "02.1": [1 + 19 * 255, 4846.0],
    "02.2": [lambda tokens: 20 * tokens + 20 * min(tokens, 128)],
    "02.3": [0.6347, 0.635],
    "02.4": [0.75, 3 / 4],
    "02.5": [115_666, 115_000],
    "04.1": [256 + 16],
    "04.2": [448 * 6 / math.sqrt(512), 118.8],
    "04.3": [0x5B],
    "04.4": [e4m3],
    "04.5": [1.054],
    "05.1": [356 * (3 * 500 + 1_001)],
    "05.2": [4 * 178],
    "05.3": [lambda tokens: 356 * (3 * (tokens // 2) + tokens) + 40 * 128 * 528 + tokens % 2 * 3 * 4096 + 24],
    "05.4": [99 * 40 * 128 * 528 / 890],
    "05.5": [80 * 2**30 / (2.5 * (528 + 68) * 2**20), 55],
    "06.1": [40 * 63, 2520.0],
    "06.2": [rows_seen],
    "06.3": [387, 384],
    "06.4": [V4_WINDOWS / V4_PER_TOKEN, 915],
    "06.5": [2 * 2**40 / 10 / (21 * 128 * 528) / 600, 258],
    "07.1": [9],
    "07.2": [20],
    "07.3": [
        [[0, 1, 0], [0, 0, 1], [1, 0, 0]],
        torch.tensor([[0.5, 0.5, 0.0], [0.3, 0.4, 0.3], [0.2, 0.1, 0.7]]),
    ],
    "07.4": [updated_streams],
    "07.5": [161, 161.0],
    "08.1": [math.log(2) / math.log(64 / 63), 45],
    "08.2": [route],
    "08.3": [ACTIVE_08 + 2 * 40 * EXPERT_08, 18.3e9],
    "08.4": [64 * 18_800_640 * 1979e12 / (2 * EXPERT_08 * 4.8e12), 7_009],
    "08.5": [[0.25, 0.5, 1.0], (1, 0.5, 0.25), {0.5, 1.0, 0.25}],
    "09.1": [2 * 32 * 264, 16_896],
    "09.2": [(2**63 - 1) // 82619226485591 + 1, 111_638],
    "09.3": [lambda token: max(3 - token, 0) * 8],
    "09.4": [engram_rows],
    "09.5": [16000057 * math.log(2), 1.11e7],
    "10.1": [(1 - 0.8**6) / (1 - 0.8)],
    "10.2": [2_906_112],
    "10.3": [stand_and_replace],
    "10.4": [4],
    "11.1": [18 * 32 + 2],
    "11.2": [(1021, 1), [1021, 1]],
    "11.3": [span_letters],
    "11.4": [(555, 1, 2)],
    "12.1": [512 * 288 + 128 * 528, 215_040.0],
    "12.2": [7_456_541],
    "12.3": [5, 5.0],
    "12.4": [(-1.5, -0.1875), [-1.5, -0.1875], torch.tensor([-1.5, -0.1875])],
    "12.5": [combined],
    "13.1": [270 * 64 * 890 + 40 * 128 * 528],
    "13.2": [324.4032, 324.4],
    "13.3": [lambda size, dram, seconds, hour: seconds * hour / (size * dram) * 1e9],
    "13.4": [[9, 4], (9, 4)],
    "14.1": [16.81 + 9.17, 25.98],
    "14.2": [8 * 2.5 * (584 + 132), 14_320],
    "14.3": [29.14 / 34.684, 0.84],
    "14.4": [lambda memory, length, rate, fixed: memory / (rate + fixed / length)],
    "14.5": [7050, (7.3745 - 2.4592) * 2**30 / 748_576],
}

# A mistake that somebody will make, and words of the hint that it should get.
WRONG = [
    ("01.1", 40 * 2**30 // SESSION, "keeps its windows too"),
    ("01.1", 40 * 2**30 / (SESSION + 40 * 128 * 528), "whole or not at all"),
    ("01.1", 40 * 10**9 // (SESSION + 40 * 128 * 528), "A GiB is"),
    ("01.1", 12, "Divide the pool"),
    ("01.2", 227, "further experts"),
    ("01.2", 56, "does not read all that is kept"),
    ("01.2", 10, "growing batches"),
    ("01.3", 2 * V4_WINDOWS / (8 * 890 - V4_PER_TOKEN), "two checkpoints"),
    ("01.3", V4_WINDOWS / V4_PER_TOKEN, "the ratio is 7.9"),
    ("01.3", 8, "solve for the tokens"),
    ("01.4", V4_PER_TOKEN / 890, "whole factor"),
    ("01.4", V4_PER_TOKEN / (2.5 * (528 + 68)), "stores V4.1 larger"),
    ("01.4", 1, "21 layers keep an entry and a key"),
    ("01.5", 170, "Give the function itself"),
    ("01.5", lambda tokens: index_keys_read(tokens, topk=0), "none needs a score"),
    ("01.5", lambda tokens: index_keys_read(tokens, pairs=False), "two tokens an entry"),
    ("01.5", lambda tokens: index_keys_read(tokens, pool=2**20), "candidate pool of 16,384"),
    ("01.5", lambda tokens: 170 * tokens if tokens > 1024 else index_keys_read(tokens), "four Reindex layers"),
    ("03.1", 20, "Give a pair"),
    ("03.1", (28, 20), "the other way round"),
    ("03.1", (28, 28), "look at both lists"),
    ("03.1", (30, 28), "not above 31"),
    ("03.2", 890, "the published plan"),
    ("03.2", 712, "every second token"),
    ("03.2", 288 + 144, "Two owners are left"),
    ("03.3", [0], "Give the function itself"),
    ("03.3", lambda token, ratio: token, "return a list"),
    ("03.3", lambda token, ratio: list(range(0, token + 1, ratio)), "closed yet"),
    ("03.3", lambda token, ratio: closed_groups(token - 1, ratio), "visible to that token"),
    ("03.3", lambda token, ratio: [p + ratio - 1 for p in closed_groups(token, ratio)], "last tokens of the groups"),
    ("03.3", lambda token, ratio: list(range((token + 1) // ratio)), "count tokens, not entries"),
    ("03.4", 2.439, "a fraction of one"),
    ("03.4", 4 / 68, "sources score too"),
    ("03.4", 1 / 164, "How many Reindex layers"),
    ("03.4", 1 / 64, "three kinds"),
    ("03.5", [1], "Give the function itself"),
    ("03.5", lambda scores, count: 1, "return a list"),
    ("03.5", lambda scores, count: selected(scores, count, by_index=False), "come out by index"),
    ("03.5", lambda scores, count: selected(scores, count, low_first=False), "Equal scores"),
    ("03.5", lambda scores, count: selected(scores, count, finite=False), "may not be selected"),
    ("03.5", lambda scores, count: sorted(range(len(scores)), key=lambda i: scores[i])[:count], "largest scores win"),
    ("03.5", lambda scores, count: [*selected(scores, count), *[-1] * 5][:count], "leave out what is missing"),
    ("02.1", 1 + 19 * 127, "the published windows"),
    ("02.1", 20 * 256, "share a token"),
    ("02.1", 256, "windows cut short"),
    ("02.1", 1 + 20 * 255, "One layer too many"),
    ("02.1", 12, "Walk down"),
    ("02.2", 23_040, "Give the function itself"),
    ("02.2", lambda tokens: 20 * tokens + 20 * 128, "nothing is left out"),
    ("02.2", lambda tokens: 20 * tokens if tokens > 128 else 40 * tokens, "the decoder runs on one window"),
    ("02.3", 1 / 0.6347, "full over bounded"),
    ("02.3", 0.5061, "nothing cached"),
    ("02.3", 0.9, "as cached"),
    ("02.4", 0.6, "the published plan"),
    ("02.4", 0.5, "do not scan alike"),
    ("02.4", 1, "square of the prompt"),
    ("02.5", 56_221, "compare with the bounded one"),
    ("02.5", 1000, "two calls"),
    ("04.1", 288, "a scale for every 16"),
    ("04.1", 256, "nibbles and the scale bytes"),
    ("04.2", 22.6, "largest element times the largest scale"),
    ("04.3", 0xB5, "nibbles are swapped"),
    ("04.3", 0, "two exponent bits"),
    ("04.4", 0.5, "Give the function itself"),
    ("04.4", lambda byte: e4m3(byte, subnormals=False), "subnormal"),
    ("04.4", lambda byte: e4m3(byte, special=False), "Byte 0x7F is NaN"),
    ("04.5", 1 / 1.054, "Divide the error's norm"),
    ("05.1", 1_001 * 890, "waiting for"),
    ("05.1", 1_000, "closed groups"),
    ("05.2", 890, "four sources"),
    ("05.3", 890, "Give the function itself"),
    ("05.3", lambda tokens: 890 * tokens, "At 128 tokens it gives 113,920; more is kept"),
    ("05.4", 40 * 128 * 528 / 890, "as much as the windows"),
    ("05.5", 92.04, "published formats"),
    ("05.5", 23, "Bytes per token first"),
    ("06.1", 40 * 127, "the published windows"),
    ("06.1", 40 * 64, "the report's product"),
    ("06.1", 64, "a bounded replay feeds"),
    ("06.1", 41 * 63, "and so on up"),
    ("06.2", 128, "Give the function itself"),
    ("06.2", lambda hit, position: rows_seen(hit, position, window=4096), "a window has an oldest row"),
    ("06.2", lambda hit, position: rows_seen(hit, position, itself=0), "it sees itself"),
    ("06.2", lambda hit, position: rows_seen(hit, position, fed=10**6), "back to the first token fed"),
    ("06.3", 512, "Counted in tokens"),
    ("06.3", 2000, "turn_costs(new)"),
    ("06.4", 2 * V4_WINDOWS / V4_PER_TOKEN, "two checkpoints"),
    ("06.4", 40 * 128 * 528 / 890, "V4-Flash's bytes"),
    ("06.5", 2 * 2**40 / 10 / (40 * 128 * 528) / 600, "all layers"),
    ("06.5", 2 * 2**40 / (21 * 128 * 528) / 600, "all of the memory"),
    ("06.5", 2 * 2**40 / 10 / (21 * 128 * 528), "held at once"),
    ("06.5", 1, "Sessions held at once"),
    ("07.1", 6, "reads the streams twice"),
    ("07.1", 8, "a part that does not grow"),
    ("07.1", 10, "solve for n"),
    ("07.2", 10, "stored in float32"),
    ("07.2", 1, "Parameters of all layers"),
    ("07.2", 19.2, "first whole number"),
    ("07.2", 157_295_040, "divided by the bytes"),
    ("07.3", 0.5, "three rows of three numbers"),
    ("07.3", [[0.5, 0.5], [0.5, 0.5]], "three rows of three numbers"),
    ("07.3", [[math.nan] * 3] * 3, "three rows of three numbers"),
    ("07.3", [[2, -1, 0], [-1, 2, 0], [0, 0, 1]], "An entry is negative"),
    ("07.3", [[1, 0, 0], [1, 0, 0], [0, 0, 1]], "A column sums to"),
    ("07.3", [[0.5, 0.5, 0.5], [0.5, 0.5, 0], [0, 0, 0.5]], "A row sums to 1.5"),
    ("07.3", [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "equals its transpose"),
    ("07.4", 1.9, "Give the function itself"),
    ("07.4", lambda streams, y, post, comb: y, "it returns [6]"),
    ("07.4", lambda streams, y, post, comb: updated_streams(streams, y, post, comb.T), "the wrong index"),
    ("07.4", lambda streams, y, post, comb: updated_streams(streams, y, post / post, comb), "its own weight, post"),
    ("07.4", lambda streams, y, post, comb: updated_streams(streams, 0 * y, post, comb), "output is missing"),
    ("07.4", lambda streams, y, post, comb: streams + post[:, None] * y, "plus the sum over j"),
    ("07.5", 81, "weight of up to two"),
    ("07.5", 160, "embedding was there"),
    ("07.5", 3.0**80, "lengths only add"),
    ("07.5", 80, "what each site can add"),
    ("08.1", 32, "only if no two tokens share"),
    ("08.1", 64, "if every token of the batch passes it by"),
    ("08.2", [3, 2], "Give the function itself"),
    ("08.2", lambda logits, bias, k: route(logits, bias, k)[0], "Return two lists"),
    ("08.2", lambda logits, bias, k: route(logits, bias, k, choose="scores"), "the order of the scores alone"),
    ("08.2", lambda logits, bias, k: [part[::-1] for part in route(logits, bias, k)], "The best comes first"),
    ("08.2", lambda logits, bias, k: ([0] * k, [0.5] * k), "Take the k largest"),
    ("08.2", lambda logits, bias, k: route(logits, bias, k, weigh="keys"), "without the bias"),
    ("08.2", lambda logits, bias, k: route(logits, bias, k, scale=1), "They sum to 1"),
    ("08.2", lambda logits, bias, k: route(logits, bias, k, scale=None), "divided by their sum"),
    ("08.2", lambda logits, bias, k: (route(logits, bias, k)[0], ["x"] * k), "They are to be numbers"),
    ("08.2", lambda logits, bias, k: (route(logits, bias, k)[0], []), "the weights are not"),
    ("08.3", ACTIVE_08 + 2 * 40 * EXPERT_08 + 129_280 * 5120, "counts the head"),
    ("08.3", ACTIVE_08 * 8 / 6, "Only the routed experts become more"),
    ("08.3", ACTIVE_08 + 2 * EXPERT_08, "Two more in each layer"),
    ("08.3", ACTIVE_08, "add two experts in every layer"),
    ("08.4", 18_800_640 * 1979e12 / (2 * EXPERT_08 * 4.8e12), "must reach one expert"),
    ("08.4", 2 * 7_009, "two operations"),
    ("08.4", 7_009 * 8 / 4.25, "four bits a weight"),
    ("08.4", 3_500, "Set bytes / bandwidth equal"),
    ("08.5", 0.5, "Give a list"),
    ("08.5", [0.5, 1.0], "there are more"),
    ("08.5", [0.25, 0.5, 2.0], "Choose from the six"),
    ("08.5", [0.25, 0.375, 0.5, 1.0], "What does a weight do to the scale"),
    ("09.1", 12_672, "stops at 4-grams"),
    ("09.1", 32 * 264, "there is another"),
    ("09.1", 2 * 32 * 256, "scales, too"),
    ("09.1", 264, "Orders times heads"),
    ("09.2", (2**63 - 1) // 82619226485591, "one more"),
    ("09.2", 99_092, "the published size"),
    ("09.2", 2**53 // 82619226485591 + 1, "limit for doubles"),
    ("09.2", 2**63 // 129_280, "the largest of the eight"),
    ("09.3", 24, "Give the function itself"),
    ("09.3", lambda token: 24, "For token 1 it gives 24. Count the n-grams"),
    ("09.3", lambda token: (3 - token) * 8, "For token 10 it gives -56. No window there"),
    ("09.4", [1, 2, 3], "Give the function itself"),
    ("09.4", lambda window: engram_rows(window, offsets=(0, 0, 0)), "These are remainders"),
    ("09.4", lambda window: engram_rows(window, pad=-1), "replaced by the pad token"),
    ("09.4", lambda window: engram_rows(window, block=False), "hides all that lie behind"),
    ("09.4", lambda window: engram_rows(window, rounds=float), "Products of ids and multipliers"),
    ("09.4", lambda window: engram_rows(window)[0], "Return 3 rows"),
    ("09.5", 4_710, "the birthday question"),
    ("09.5", 8_000_028, "Half as many n-grams as buckets"),
    ("09.5", 16_000_057, "(1 - 1/b)^(r-1)"),
    ("10.1", (1 - 0.8**6) / 0.2 - 1, "one more token comes out"),
    ("10.1", 5, "only if all before it stand"),
    ("10.1", 2, "0.8 to the j"),
    ("10.2", 2_703_360, "each draft layer has a window"),
    ("10.2", 43 * 128 * 512, "one byte for 32 channels"),
    ("10.2", 1, "bytes of a row"),
    ("10.3", 0.5, "Give the function itself"),
    ("10.3", lambda target, drafter: 1, "it gives no number and list"),
    ("10.3", lambda target, drafter: (1.0, target), "Draft x comes up q(x)"),
    ("10.3", lambda target, drafter: (stand_and_replace(target, drafter)[0], target), "more of than the drafter"),
    ("10.3", lambda target, drafter: (stand_and_replace(target, drafter)[0], [0.0] * len(target)), "sum to 0"),
    ("10.4", 5, "What is a millisecond worth"),
    ("10.4", 2, "while expected tokens over time rise"),
    ("11.1", 31 * 18, "Newlines and delimiters"),
    ("11.1", 18 * 32, "the delimiters"),
    ("11.1", 31 * 19 + 2, "not each column"),
    ("11.1", 1, "Round up twice"),
    ("11.2", 31, "two whole numbers"),
    ("11.2", (0, 5), "at least 1"),
    ("11.2", (32, 32), "1,058 positions"),
    ("11.2", (31, 31), "fewer rows"),
    ("11.2", (100, 10), "a grid with more"),
    ("11.3", "SE", "Give the function itself"),
    ("11.3", lambda columns: "", "called with two numbers"),
    ("11.3", lambda columns, rows: 5, "a string is wanted"),
    ("11.3", lambda columns, rows: "S" + "I" * columns * rows + "E", "letters; the span has"),
    ("11.3", lambda columns, rows: "S" + ("N" + "I" * columns) * rows + "E", "the order is not"),
    ("11.4", 555, "three whole numbers"),
    ("11.4", (5000 % 1024, 1, 1), "channel-major"),
    ("11.4", (555, 2, 1), "rows come before columns"),
    ("11.4", (0, 0, 0), "Index = channel"),
    ("12.1", 512 * 288, "every layer read beside them"),
    ("12.1", 128 * 528, "That is the window"),
    ("12.1", 2 * 512 * 288 + 128 * 528, "key and value at once"),
    ("12.1", 640 * 288, "one format"),
    ("12.2", 7_456_540, "One slot before"),
    ("12.2", 2**32 // 288 + 1, "int32 has a sign"),
    ("12.2", 2**31, "largest offset"),
    ("12.3", 132 / 32, "Splits are whole"),
    ("12.3", 4, "Splits are whole"),
    ("12.3", 17, "does not take all heads"),
    ("12.3", 132, "without a split"),
    ("12.4", -1.5, "Give a pair"),
    ("12.4", (-1.5, -0.1875, 0.0), "Give a pair"),
    ("12.4", (-0.1875, -1.5), "in the low nibble"),
    ("12.4", (-4.0, -0.5), "Multiply by the scale"),
    ("12.4", (1.5, -0.1875), "sign bits"),
    ("12.4", (-1.5, -0.375), "bias 7"),
    ("12.5", (3.0, 1.0, 1.0), "Give the function itself"),
    ("12.5", lambda first, second: first[0], "Return three numbers"),
    ("12.5", combined_with_infinities, "has a NaN in it"),
    ("12.5", lambda first, second: combined(first, second, largest=min), "has the maximum 1."),
    ("12.5", lambda first, second: (first[0] + second[0], 1.0, 1.0), "has the maximum 4"),
    ("12.5", lambda first, second: combined(first, second, fades=False), "relative to different maxima"),
    ("12.5", lambda first, second: (*combined(first, second)[:2], first[2] + second[2]), "which weights"),
    ("16.1", 4, "selects for itself"),
    ("16.1", 15, "all Reuse layers of the decoder"),
    ("16.1", 12, "a Reindex layer selected"),
    ("16.1", 5, "index_source"),
    ("16.2", 0.5, "Give the function itself"),
    ("16.2", lambda *given: missed_16(*given, sign=-1), "how often the entry is selected"),
    ("16.2", lambda *given: missed_16(*given, noisy=False), "without noise"),
    ("16.2", lambda score, edge, deviation: missed_16(score, edge, deviation**2), "how many deviations"),
    ("16.3", 380, "one fewer"),
    ("16.3", 300, "rule of three"),
    ("16.3", 100, "expect one miss"),
    ("16.3", 50, "estimate_share(0, n).high"),
    ("16.4", 1 / 24, "Turn it round"),
    ("16.4", 12, "kept as it is"),
    ("16.4", 6, "one of the eight"),
    ("16.4", 448, "What is rounded to zero"),
    ("16.5", 0.05, "one of them"),
    ("16.5", 0.25, "widens its intervals"),
    ("16.5", 0.95**5, "none errs"),
    ("16.5", 22.6, "not in per cent"),
    ("16.5", 0.5, "all of them are right"),
    ("17.1", -38.2, "which of the two is the measure"),
    ("17.1", 38.19, "which of the two is the measure"),
    ("17.1", 1.618, "In per cent"),
    ("17.1", 0.618, "In per cent"),
    ("17.1", 550, "as a share of 890"),
    ("17.2", True, "Give the function itself"),
    ("17.2", lambda printed, value: prints_17(printed, value, decimals=0), "Count the printed decimals"),
    ("17.2", lambda printed, value: prints_17(printed, value, commas=False), "mind the commas"),
    ("17.2", lambda printed, value: False, "it prints so"),
    ("17.3", 16_384, "saves nothing at all"),
    ("17.3", 32_768, "layer 20 has all of it"),
    ("17.3", 65_536, "When is that half"),
    ("17.4", 272, "one main record"),
    ("17.4", 680, "index keys are missing"),
    ("17.4", 890, "one for 32"),
    ("17.4", 800, "a byte for every 32"),
    ("15.1", math.log(36), "An answer has two"),
    ("15.1", 2 * math.log2(36), "bits"),
    ("13.1", 270 * 64 * 890, "private rows travel, too"),
    ("13.1", 782 * 64 * 890 + 2_703_360, "which the decode worker has"),
    ("13.1", 17_232 * 890 + 2_703_360, "last page is sent whole"),
    ("13.1", 44_500_000, "528 bytes for each row"),
    ("13.2", 324_403_200_000, "asks for GB"),
    ("13.2", 302.12, "10^9 bytes"),
    ("13.2", 0.1068, "a size of their own"),
    ("13.2", 5.40672, "600 seconds"),
    ("13.2", 7, "times the seconds"),
    ("13.3", 7480, "function itself"),
    ("13.3", lambda: 1, "four numbers"),
    ("13.3", lambda size, dram, seconds, hour: seconds * hour / 3600 / (size / 1e9 * dram), "in hours"),
    ("13.3", lambda size, dram, seconds, hour: 3600 * seconds * hour / (size / 1e9 * dram), "3,600 times too long"),
    ("13.3", lambda size, dram, seconds, hour: seconds * hour / (size / 2**30 * dram), "2^30 bytes"),
    ("13.3", lambda size, dram, seconds, hour: 0, "both cost the same"),
    ("13.4", 9, "list of tokens"),
    ("13.4", [7, 9, 4], "in the handover already"),
    ("13.4", [], "draw them again"),
    ("13.4", [4], "without the one"),
    ("14.1", 17.38, "splits what is no expert"),
    ("14.1", 16.81, "beside them"),
    ("14.1", 475, "all of the rest"),
    ("14.2", 1_790, "the other seven"),
    ("14.2", 7_120, "trained formats"),
    ("14.2", 890, "cannot be split"),
    ("14.3", 3_441.2, "How many tokens has a request"),
    ("14.3", 0.44, "what the ledger makes of it"),
    ("14.3", 29.14, "The log tells both"),
    ("14.4", 890, "Give the function itself"),
    ("14.4", lambda memory, length, rate, fixed: memory / rate, "whatever its length"),
    ("14.4", lambda memory, length, rate, fixed: memory / (rate * length + fixed), "prints tokens"),
    ("14.4", lambda memory, length, rate, fixed: memory, "it is wrong"),
    ("14.5", 8_802, "mixes what a token costs"),
    ("14.5", 5.26e8, "beside its tokens"),
    ("14.5", 890, "how much more"),
    ("15.1", 2 * math.log(26), "26 letters and 10 digits"),
    ("15.2", 890, "with sharing"),
    ("15.2", 38 * 356, "gives up the ratio"),
    ("15.2", 38 * 288, "one for every two tokens"),
    ("15.3", 0.5, "does not fall to zero"),
    ("15.3", 0.1, "to a tenth of it"),
    ("15.4", 4, "the function itself"),
    ("15.4", lambda first, tokens: tokens / 2, "tokens 2j and 2j + 1"),
    ("15.4", lambda first, tokens: entries_touched(first, tokens, last=0), "tokens 2j and 2j + 1"),
    ("15.4", lambda first, tokens: entries_touched(first, tokens, ratio=1), "tokens 2j and 2j + 1"),
]


def test_every_exercise_of_these_chapters_is_covered():
    covered = {name.split(".")[0] for name in RIGHT}
    assert sorted(RIGHT) == [name for name in NAMES if name.split(".")[0] in covered]
    assert {name for name, _, _ in WRONG} == set(RIGHT)


@pytest.mark.parametrize(("name", "answer"), [(name, answer) for name, found in RIGHT.items() for answer in found])
def test_right_answers_pass(name, answer):
    assert check(name, answer).message == "right"
    assert verify(name, answer).passed


@pytest.mark.parametrize(("name", "answer", "words"), WRONG)
def test_mistakes_get_their_hint(name, answer, words):
    result = check(name, answer)
    assert not result
    assert result.message.startswith("not yet. ")
    assert words in result.message
    with pytest.raises(AssertionError, match=f"Exercise {name}"):
        verify(name, answer)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_not_an_answer(name):
    for empty in (None, ...):
        result = check(name, empty)
        assert not result
        assert repr(result) == f"· Exercise {name}: not answered yet"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "nonsense", ["nonsense", [], True, math.nan, -1, object(), lambda *_: None], ids=lambda value: type(value).__name__
)
def test_nonsense_gets_a_hint_and_no_traceback(name, nonsense):
    assert check(name, nonsense).message.startswith("not yet. ")


@pytest.mark.parametrize("name", NAMES)
def test_hints_do_not_give_the_answer_away(name):
    hint = check(name, -1).message
    for answer in RIGHT.get(name, []):
        if isinstance(answer, (int, float)):
            assert not {f"{answer:g}", f"{answer:.0f}", f"{answer:,.0f}"} & set(re.findall(r"[\d,.]*\d", hint))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_exercises_are_numbered_and_stand_in_their_chapter(chapter):
    names = names_of(chapter)
    assert names == [f"{chapter}.{n}" for n in range(1, len(names) + 1)]
    assert 4 <= len(names) <= 6
    (path,) = BOOK.glob(f"{chapter}-*.ipynb")
    cells = nbformat.read(path, as_version=4).cells
    for number, name in enumerate(names, start=1):
        asked = [cell for cell in cells if cell.id == f"exercise-{number}"]
        solved = [cell for cell in cells if cell.id == f"solution-{number}"]
        assert len(asked) == len(solved) == 1
        assert f'check("{name}", answer)' in asked[0].source
        assert f'verify("{name}"' in solved[0].source
        assert "solution" in solved[0].metadata.tags


def test_unknown_names_are_refused():
    with pytest.raises(KeyError, match=r"no exercise '01\.99'; chapter 01 has 01\.1, 01\.2"):
        check("01.99", 1)
    with pytest.raises(KeyError, match="no exercises for chapter '77'"):
        check("77.1", 1)
    with pytest.raises(KeyError, match="no exercises for chapter 'nonsense'"):
        verify("nonsense", 1)
