"""Answers to the exercises of chapters 01 to 04: right ones, and mistakes with words of the remark that each gets."""

import math

import numpy as np
import torch

SESSION = 890 * 65_536
V4_PER_TOKEN = 21 * 652 / 4 + 20 * 584 / 128
V4_WINDOWS = 43 * 128 * 584


def index_keys_read(tokens, topk=512, pool=16_384, pairs=True):
    """Bytes of index keys that a step reads: three layers over pairs, one over tokens, four over the pool."""
    sizes = [tokens // 2 if pairs else tokens] * 3 + [tokens] + [min(tokens, pool)] * 4
    return 68 * sum(size for size in sizes if size > topk)


def closed_groups(token, ratio):
    """First tokens of the groups that are complete when the token attends."""
    return [first for first in range(0, token + 1, ratio) if first + ratio - 1 <= token]


def selected(scores, count, by_index=True, low_first=True, finite=True):
    """The rule of selection by plain sorting; each flag off is one mistake."""
    allowed = [i for i, score in enumerate(scores) if not finite or score > -math.inf]
    best = sorted(allowed, key=lambda i: (-scores[i], i if low_first else -i))[:count]
    return sorted(best) if by_index else best


def e4m3(byte, subnormals=True, special=True):
    sign, exponent, mantissa = -1.0 if byte & 128 else 1.0, byte >> 3 & 15, byte & 7
    if special and byte & 127 == 127:
        return math.nan
    if subnormals and exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


RIGHT = {
    "01.1": [40 * 2**30 // (SESSION + 40 * 128 * 528), 703.0, np.float64(703), torch.tensor(703)],
    "01.2": [5189],
    "01.3": [V4_WINDOWS / (8 * 890 - V4_PER_TOKEN), 891, 892],
    "01.4": [(21 * 356 / 4 + 20 * 288 / 128) / 890, 2.15, torch.tensor(2.152)],
    "01.5": [index_keys_read],
    "02.1": [1 + 19 * 255, 4846.0],
    "02.2": [lambda tokens: 20 * tokens + 20 * min(tokens, 128)],
    "02.3": [0.6347, 0.635],
    "02.4": [0.75, 3 / 4],
    "02.5": [115_666, 115_000],
    "03.1": [(20, 28), [20, 28], torch.tensor([20, 28]), (np.int64(20), torch.tensor(28))],
    "03.2": [178 + 356],
    "03.3": [closed_groups, lambda token, ratio: np.arange((token + 1) // ratio) * ratio],
    "03.4": [4 * 16_384 / (3 * 2**19 + 2**20 + 4 * 16_384), 0.02439],
    "03.5": [selected, lambda scores, count: torch.tensor(selected(scores, count), dtype=torch.int64)],
    "04.1": [256 + 16],
    "04.2": [448 * 6 / math.sqrt(512), 118.8],
    "04.3": [0x5B, torch.tensor(0x5B, dtype=torch.uint8), np.uint8(0x5B)],
    "04.4": [e4m3, lambda byte: np.float32(e4m3(byte)), lambda byte: torch.tensor(e4m3(byte))],
    "04.5": [1.054],
}

# A mistake that somebody will make, and words of the remark that it should get.
WRONG = [
    ("01.1", 40 * 2**30 // SESSION, "keeps its windows too"),
    ("01.1", 40 * 2**30 / (SESSION + 40 * 128 * 528), "whole or not at all"),
    ("01.1", 40 * 10**9 // (SESSION + 40 * 128 * 528), "A GiB is"),
    ("01.1", 12, "Divide the pool"),
    ("01.1", 40 * 2**30 // (SESSION + 128 * 528), "the window of one layer"),
    ("01.2", 227, "further experts"),
    ("01.2", 56, "does not read all that is kept"),
    ("01.2", 10, "growing batches"),
    ("01.2", 1557, "the batch for a million tokens"),
    ("01.2", max, "not a function of it"),
    ("01.3", 2 * V4_WINDOWS / (8 * 890 - V4_PER_TOKEN), "two checkpoints"),
    ("01.3", V4_WINDOWS / V4_PER_TOKEN, "the ratio is 7.9"),
    ("01.3", 8, "solve for the tokens"),
    ("01.3", 2 * V4_WINDOWS / V4_PER_TOKEN, "two checkpoints are half of the store"),
    ("01.3", 40 * 128 * 528 / (8 * 890 - V4_PER_TOKEN), "V4 stored its own windows"),
    ("01.4", V4_PER_TOKEN / 890, "whole factor"),
    ("01.4", V4_PER_TOKEN / (2.5 * (528 + 68)), "stores V4.1 larger"),
    ("01.4", 1, "21 layers keep an entry and a key"),
    ("01.4", 890 / (21 * 356 / 4 + 20 * 288 / 128), "turn it round"),
    ("01.4", V4_PER_TOKEN / (21 * 356 / 4 + 20 * 288 / 128), "the formats account for"),
    ("01.4", (21 * 356 / 4 + 20 * 288 / 128) / V4_PER_TOKEN, "a share of the factor"),
    ("01.4", 21 * 356 / 4 + 20 * 288 / 128, "bytes per token of V4-Flash"),
    ("01.5", 170, "Give the function itself"),
    ("01.5", lambda tokens: index_keys_read(tokens, topk=0), "none needs a score"),
    ("01.5", lambda tokens: index_keys_read(tokens, pairs=False), "two tokens an entry"),
    ("01.5", lambda tokens: index_keys_read(tokens, pool=2**20), "candidate pool of 16,384"),
    ("01.5", lambda tokens: 170 * tokens if tokens > 1024 else index_keys_read(tokens), "four Reindex layers"),
    ("01.5", lambda: 0, "it raises TypeError"),
    ("01.5", lambda tokens: None, "is a return missing"),
    ("01.5", lambda tokens: index_keys_read(tokens) // 68, "how many bytes has each"),
    ("01.5", lambda tokens: index_keys_read(tokens) // 68 * 64, "stored with its scales"),
    ("02.1", 1 + 19 * 127, "the published windows"),
    ("02.1", 20 * 256, "share a token"),
    ("02.1", 256, "windows cut short"),
    ("02.1", 1 + 20 * 255, "One layer too many"),
    ("02.1", 12, "Walk down"),
    ("02.1", 19 * 255, "One short"),
    ("02.1", 1 + 19 * 256, "a layer adds less than a window"),
    ("02.1", sum(1 + layers * 255 for layers in range(20)), "tokens times layers"),
    ("02.2", 23_040, "Give the function itself"),
    ("02.2", lambda tokens: 20 * tokens + 20 * 128, "nothing is left out"),
    ("02.2", lambda tokens: 20 * tokens if tokens > 128 else 40 * tokens, "the decoder runs on one window"),
    ("02.2", lambda: 0, "it raises TypeError"),
    ("02.2", lambda tokens: None, "is a return missing"),
    ("02.2", lambda tokens: 20 * tokens + sum(min(tokens, 1 + k * 127) for k in range(20)), "nothing is left out"),
    ("02.2", lambda n: 40 * n if n <= 128 else 20 * n + sum(min(n, 1 + k * 127) for k in range(20)), "the exact tail"),
    ("02.3", 1 / 0.6347, "full over bounded"),
    ("02.3", 0.5061, "nothing cached"),
    ("02.3", 0.9, "as cached"),
    ("02.3", 63.47, "in per cent"),
    ("02.3", 1 - 0.6347, "the part that is saved"),
    ("02.3", 0.628, "the estimate"),
    ("02.3", 0.256, "the decoder's part"),
    ("02.3", [4.1, 6.5], "the quotient of the two"),
    ("02.4", 0.6, "the published plan"),
    ("02.4", 0.5, "do not scan alike"),
    ("02.4", 1, "square of the prompt"),
    ("02.4", 3 / 8, "a pool that does not grow"),
    ("02.4", 0.25, "the decoder's part"),
    ("02.4", 4 / 3, "full over bounded"),
    ("02.4", 3, "the encoder over the decoder"),
    ("02.4", 75, "in per cent"),
    ("02.5", 56_221, "compare with the bounded one"),
    ("02.5", 1000, "two calls"),
    ("02.5", 117_740, "stopping half-way saves"),
    ("02.5", 10_658, "a tenth more"),
    ("02.5", 1, "begin the search behind them"),
    ("02.5", lambda tokens: True, "not a function of it"),
    ("03.1", 20, "Give a pair"),
    ("03.1", (28, 20), "the other way round"),
    ("03.1", (28, 28), "look at both lists"),
    ("03.1", (30, 28), "not above 31"),
    ("03.1", (20, 32), "layers below it"),
    ("03.1", ("20", "28"), "Give a pair"),
    ("03.2", 890, "the published plan"),
    ("03.2", 712, "every second token"),
    ("03.2", 288 + 144, "Two owners are left"),
    ("03.2", 356, "layer 2 writes, too"),
    ("03.2", 178, "layer 2 alone"),
    ("03.2", 534 + 2 * 34, "keeps none of its own"),
    ("03.3", [0], "Give the function itself"),
    ("03.3", lambda token, ratio: token, "return a list"),
    ("03.3", lambda token, ratio: list(range(0, token + 1, ratio)), "closed yet"),
    ("03.3", lambda token, ratio: closed_groups(token - 1, ratio), "visible to that token"),
    ("03.3", lambda token, ratio: [p + ratio - 1 for p in closed_groups(token, ratio)], "last tokens of the groups"),
    ("03.3", lambda token, ratio: list(range((token + 1) // ratio)), "count tokens, not entries"),
    ("03.3", lambda: [], "it raises TypeError"),
    ("03.3", lambda token, ratio: closed_groups(token, ratio)[::-1], "the oldest comes first"),
    ("03.4", 2.439, "a fraction of one"),
    ("03.4", 4 / 68, "sources score too"),
    ("03.4", 1 / 164, "How many Reindex layers"),
    ("03.4", 1 / 64, "three kinds"),
    ("03.4", 65_536 / (3 * 2**19 + 65_536), "Layer 20 scores too"),
    ("03.4", 65_536 / (2**22 + 65_536), "two tokens in one entry"),
    ("03.4", 65_536 / (3 * 2**19 + 2**20), "includes the Reindex layers themselves"),
    ("03.4", 1 - 0.02439, "the share of the Full layers"),
    ("03.4", 2**28, "which part of all"),
    ("03.5", [1], "Give the function itself"),
    ("03.5", lambda scores, count: 1, "return a list"),
    ("03.5", lambda scores, count: selected(scores, count, by_index=False), "come out by index"),
    ("03.5", lambda scores, count: selected(scores, count, low_first=False), "Equal scores"),
    ("03.5", lambda scores, count: selected(scores, count, finite=False), "may not be selected"),
    ("03.5", lambda scores, count: sorted(range(len(scores)), key=lambda i: scores[i])[:count], "largest scores win"),
    ("03.5", lambda scores, count: [*selected(scores, count), *[-1] * 5][:count], "leave out what is missing"),
    ("03.5", lambda: [], "it raises TypeError"),
    ("03.5", lambda scores, count: sorted(scores, reverse=True)[:count], "not scores"),
    ("03.5", lambda scores, count: selected(scores, count) + selected(scores, count), "selected twice"),
    ("03.5", lambda scores, count: selected(scores, count + 1), "too many"),
    ("03.5", lambda scores, count: [i for i in selected(scores, count) if scores[i] > 0], "too few"),
    ("04.1", 288, "a scale for every 16"),
    ("04.1", 256, "nibbles and the scale bytes"),
    ("04.1", 8 * 272, "Those are bits"),
    ("04.1", 4.25, "bits per channel"),
    ("04.1", 512 + 16, "two channels share a byte"),
    ("04.1", 256 + 8, "a whole byte"),
    ("04.1", 272 + 68, "a record of its own"),
    ("04.2", 22.6, "largest element times the largest scale"),
    ("04.2", 2_688, "the reach of the format"),
    ("04.2", math.sqrt(512) / 2_688, "turn it round"),
    ("04.2", 448 / math.sqrt(512), "the largest scale alone"),
    ("04.2", 6 / math.sqrt(512), "the largest element alone"),
    ("04.2", 2_688 / 512, "square root of the number"),
    ("04.2", 268.8, "seen in training"),
    ("04.3", 0xB5, "nibbles are swapped"),
    ("04.3", 0, "two exponent bits"),
    ("04.3", "0x5B", "without quotation marks"),
    ("04.3", [0xB, 0x5], "both nibbles make one byte"),
    ("04.3", 1011011, "put 0b before them"),
    ("04.3", 0x53, "Channel 0 is negative"),
    ("04.3", 0xB, "the nibble of one channel"),
    ("04.4", 0.5, "Give the function itself"),
    ("04.4", lambda byte: e4m3(byte, subnormals=False), "subnormal"),
    ("04.4", lambda byte: e4m3(byte, special=False), "Byte 0x7F is NaN"),
    ("04.4", lambda: 0.0, "it raises TypeError"),
    ("04.4", lambda byte: None, "is a return missing"),
    ("04.4", lambda byte: abs(e4m3(byte)), "The highest bit is the sign"),
    ("04.4", lambda byte: math.inf if byte & 127 >= 120 else e4m3(byte), "none is infinite"),
    ("04.4", lambda byte: e4m3(byte) / (2 if byte & 127 >= 8 else 1), "the exponent's bias"),
    ("04.4", lambda byte: e4m3(byte & 248), "It is subnormal"),
    ("04.4", lambda byte: e4m3(byte if byte & 127 < 8 else byte & 248), "the mantissa field in eighths"),
    ("04.5", 1 / 1.054, "Divide the error's norm"),
    ("04.5", 1 / 1.054, "Turn it round"),
    ("04.5", 0.0951, "the error of one of the two"),
    ("04.5", 1.111, "the ratio of the squares"),
    ("04.5", 105.4, "in per cent"),
    ("04.5", 5.4, "how much the error changes"),
    ("04.5", 2, "Divide the error's norm"),
]
