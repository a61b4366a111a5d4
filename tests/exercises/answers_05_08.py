"""Answers to the exercises of chapters 05 to 08: right ones, and mistakes with words of the remark that each gets."""

import math

import torch
from answers_01_04 import V4_PER_TOKEN, V4_WINDOWS

ACTIVE_08 = 15_468_670_064
EXPERT_08 = 3 * 2304 * 5120


def rows_seen(hit, position, fed=128, window=128, itself=1):
    """Window rows of a token behind a replayed hit."""
    return position - max(0, hit - fed, position - window + 1) + itself


def updated_streams(streams, y, post, comb):
    """One token's streams behind a site, entry by entry."""
    n = len(streams)
    return torch.stack([post[k] * y + sum(comb[j][k] * streams[j] for j in range(n)) for k in range(n)])


def route(logits, bias, k, weigh="scores", scale=1.5, choose="both"):
    scores = [math.sqrt(math.log(1 + math.exp(logit))) for logit in logits]
    keys = [score + one for score, one in zip(scores, bias, strict=True)] if choose == "both" else scores
    chosen = sorted(range(len(keys)), key=keys.__getitem__, reverse=True)[:k]
    weights = keys if weigh == "keys" else scores
    total = sum(weights[e] for e in chosen) if scale else 1
    return chosen, [(scale or 1) * weights[e] / total for e in chosen]


def everything_kept(tokens, layers=40, waiting=4096, history=24):
    """Bytes of one sequence beyond its first window; the arguments are what mistakes leave out."""
    return 356 * (3 * (tokens // 2) + tokens) + layers * 128 * 528 + tokens % 2 * 3 * waiting + history


RIGHT = {
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
    "07.3": [[[0, 1, 0], [0, 0, 1], [1, 0, 0]], torch.tensor([[0.5, 0.5, 0.0], [0.3, 0.4, 0.3], [0.2, 0.1, 0.7]])],
    "07.4": [updated_streams],
    "07.5": [161, 161.0],
    "08.1": [math.log(2) / math.log(64 / 63), 45],
    "08.2": [route],
    "08.3": [ACTIVE_08 + 2 * 40 * EXPERT_08, 18.3e9],
    "08.4": [64 * 18_800_640 * 1979e12 / (2 * EXPERT_08 * 4.8e12), 7_009],
    "08.5": [[0.25, 0.5, 1.0], (1, 0.5, 0.25), {0.5, 1.0, 0.25}],
}

# A mistake that somebody will make, and words of the remark that it should get.
WRONG = [
    ("05.1", 1_001 * 890, "waiting for"),
    ("05.1", 1_000, "closed groups"),
    ("05.1", "890356", "without quotes"),
    ("05.1", max, "not a function"),
    ("05.1", math.inf, "one finite number"),
    ("05.1", 890 * 1_000, "for the last token as well"),
    ("05.1", 356 * (3 * 501 + 1_001), "has written nothing"),
    ("05.1", 356 * (3 * 500 + 1_001) + 3 * 4096, "beside the global KV"),
    ("05.1", everything_kept(1_001), "the global KV alone"),
    ("05.1", 356 * 1_001, "So much does one source write"),
    ("05.1", 890.356, "to the byte"),
    ("05.2", 890, "four sources"),
    ("05.2", 178, "then write per token"),
    ("05.2", 445, "have ratio 2 already"),
    ("05.2", 4 * 356, "an entry a token for each"),
    ("05.2", 890 - 356, "only half as often"),
    ("05.2", 4 * 288 / 2, "has an index key, too"),
    ("05.3", 890, "Give the function itself"),
    ("05.3", lambda tokens: 890 * tokens, "At 128 tokens it gives 113,920; more is kept"),
    ("05.3", lambda tokens: str(tokens), "is no number of bytes"),
    ("05.3", lambda: 890, "At 128 tokens it raises an error: TypeError"),
    ("05.3", lambda tokens: everything_kept(tokens, layers=0), "the windows are missing"),
    ("05.3", lambda tokens: everything_kept(tokens, layers=4), "every layer has a window"),
    ("05.3", lambda tokens: everything_kept(tokens, history=0), "the Engram history is missing"),
    (
        "05.3",
        lambda tokens: everything_kept(tokens, waiting=0),
        "At 129 tokens it gives 2,817,660; more is kept: at an",
    ),
    ("05.3", lambda tokens: everything_kept(tokens, waiting=2048), "two rows, value and gate"),
    ("05.3", lambda tokens: everything_kept(tokens | 1) - 356 * (~tokens % 2), "at an even length no token waits"),
    ("05.3", lambda tokens: everything_kept(tokens) + tokens % 2 * 534, "an average over two tokens"),
    ("05.3", lambda tokens: 10**9, "less is kept."),
    ("05.4", 40 * 128 * 528 / 890, "as much as the windows"),
    ("05.4", 1, "must weigh 99 times"),
    ("05.4", 100 * 40 * 128 * 528 / 890, "of the global KV alone"),
    ("05.4", 99 * 40 * 128 * 528, "How many tokens have so many"),
    ("05.4", 300.7, "not thousands of them"),
    ("05.5", 92.04, "published formats"),
    ("05.5", 23, "Bytes per token first"),
    ("05.5", 80e9 / (2.5 * (528 + 68) * 2**20), "a pool of 80 GB"),
    ("05.5", 80 * 2**30 / (2.5 * (528 + 68) * 1e6), "contexts of a million tokens"),
    ("05.5", 80 * 2**30 / (2.5 * 528 * 2**20), "The index keys are missing"),
    ("05.5", 80 * 2**30 / (4 * (528 + 68) * 2**20), "for every two tokens"),
    ("05.5", 80 * 2**30 / (2.5 * (528 + 68)), "So many tokens fit"),
    ("06.1", 40 * 127, "the published windows"),
    ("06.1", 40 * 64, "the report's product"),
    ("06.1", 64, "a bounded replay feeds"),
    ("06.1", 41 * 63, "and so on up"),
    ("06.1", 40 * 63 + 1, "The token after the prefix is new"),
    ("06.1", 39 * 63, "One layer is missing"),
    ("06.1", 20 * 63, "the encoder's windows exact"),
    ("06.1", sum(layers * 63 for layers in range(1, 41)), "Count each token once"),
    ("06.2", 128, "Give the function itself"),
    ("06.2", lambda hit, position: rows_seen(hit, position, window=4096), "a window has an oldest row"),
    ("06.2", lambda hit, position: rows_seen(hit, position, itself=0), "it sees itself"),
    ("06.2", lambda hit, position: rows_seen(hit, position, fed=10**6), "back to the first token fed"),
    ("06.2", lambda hit, position: "1", "that is no number"),
    ("06.2", lambda hit: hit, "For a hit of 1 and position 1 it raises an error: TypeError"),
    ("06.2", lambda hit, position: min(128, position - hit + 129), "before token 0 there is nothing"),
    ("06.3", 512, "Counted in tokens"),
    ("06.3", 2000, "turn_costs(new)"),
    ("06.3", 259, "a quarter of turn and replay together"),
    ("06.3", 0.25, "That is the share"),
    ("06.4", 2 * V4_WINDOWS / V4_PER_TOKEN, "two checkpoints"),
    ("06.4", 40 * 128 * 528 / 890, "V4-Flash's bytes"),
    ("06.4", 1, "as many bytes as the global KV of how many tokens"),
    ("06.4", V4_WINDOWS / V4_PER_TOKEN / 2, "Half of the store"),
    ("06.5", 2 * 2**40 / 10 / (40 * 128 * 528) / 600, "all layers"),
    ("06.5", 2 * 2**40 / (21 * 128 * 528) / 600, "all of the memory"),
    ("06.5", 2 * 2**40 / 10 / (21 * 128 * 528), "held at once"),
    ("06.5", 1, "Sessions held at once"),
    ("06.5", 2 * 2**40 / 10 / (20 * 128 * 528) / 600, "one layer is missing"),
    ("06.5", 2 * 2**40 / 10 / (128 * 528) / 600, "the window of one layer"),
    ("06.5", 2 * 2**40 / 10 / (21 * 128 * 528) / 10, "So many a minute"),
    ("06.5", 2e12 / 10 / (21 * 128 * 528) / 600, "2 TB of memory"),
    ("07.1", 6, "reads the streams twice"),
    ("07.1", 8, "a part that does not grow"),
    ("07.1", 10, "solve for n"),
    ("07.1", 4, "Set the vectors of the separate kernels"),
    ("07.1", 20, "That is the budget"),
    ("07.2", 10, "stored in float32"),
    ("07.2", 1, "Parameters of all layers"),
    ("07.2", 19.2, "first whole number"),
    ("07.2", 157_295_040, "divided by the bytes"),
    ("07.2", 19, "the parameters still have more bytes"),
    ("07.2", 14, "the traffic of two passes"),
    ("07.2", 39, "An activation has two bytes"),
    ("07.2", 1_537, "the traffic of one site"),
    ("07.3", 0.5, "three rows of three numbers"),
    ("07.3", [[0.5, 0.5], [0.5, 0.5]], "three rows of three numbers"),
    ("07.3", [[math.nan] * 3] * 3, "three rows of three numbers"),
    ("07.3", [[2, -1, 0], [-1, 2, 0], [0, 0, 1]], "An entry is negative"),
    ("07.3", [[1, 0, 0], [1, 0, 0], [0, 0, 1]], "A column sums to"),
    ("07.3", [[0.5, 0.5, 0.5], [0.5, 0.5, 0], [0, 0, 0.5]], "A row sums to 1.5"),
    ("07.3", [[1, 0, 0], [0, 1, 0], [0, 0, 1]], "equals its transpose"),
    ("07.3", torch.eye(3).to_sparse(), "equals its transpose"),
    ("07.4", 1.9, "Give the function itself"),
    ("07.4", lambda streams, y, post, comb: y, "it returns [6]"),
    ("07.4", lambda streams, y, post, comb: updated_streams(streams, y, post, comb.T), "the wrong index"),
    ("07.4", lambda streams, y, post, comb: updated_streams(streams, y, post / post, comb), "its own weight, post"),
    ("07.4", lambda streams, y, post, comb: updated_streams(streams, 0 * y, post, comb), "output is missing"),
    ("07.4", lambda streams, y, post, comb: streams + post[:, None] * y, "plus the sum over j"),
    ("07.4", lambda streams, y, post, comb: streams * math.nan, "finite real numbers"),
    ("07.4", lambda streams: streams, "For streams [4, 6] it raises an error: TypeError"),
    ("07.4", lambda streams, y, post, comb: "streams", "an object of the type str"),
    ("07.4", lambda streams, y, post, comb: streams.to_sparse(), "plus the sum over j"),
    ("07.4", lambda streams, y, post, comb: streams.to("meta"), "an object of the type Tensor"),
    ("07.5", 81, "weight of up to two"),
    ("07.5", 160, "embedding was there"),
    ("07.5", 3.0**80, "lengths only add"),
    ("07.5", 80, "what each site can add"),
    ("08.1", 32, "only if no two tokens share"),
    ("08.1", 64, "if every token of the batch passes it by"),
    ("08.1", math.log(2) / math.log(63 / 64), "A batch is positive"),
    ("08.1", math.log(2) / math.log(64), "being passed by"),
    ("08.1", math.log(2) / math.log(384 / 383), "for one expert a token"),
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
    ("08.2", lambda logits: logits, "it raises an error: TypeError"),
    ("08.2", lambda logits, bias, k: (["0"] * k, [0.5] * k), "Experts are whole numbers"),
    ("08.2", lambda logits, bias, k: [part[:-1] for part in route(logits, bias, k)], "Choose k experts"),
    ("08.2", lambda logits, bias, k: ([one + 1 for one in route(logits, bias, k)[0]], [0.5] * k), "counted from 0"),
    ("08.2", lambda logits, bias, k: (route(logits, bias, k)[0], [1.5 / k] * k), "Is each of them in proportion"),
    ("08.2", lambda logits, bias, k: (route(logits, bias, k)[0], route(logits, bias, k)[1][::-1]), "in another order"),
    ("08.2", lambda logits, bias, k: (route(logits, bias, k)[0], [1.5] * (k + 1)), "one for each chosen expert"),
    ("08.3", ACTIVE_08 + 2 * 40 * EXPERT_08 + 129_280 * 5120, "counts the head"),
    ("08.3", ACTIVE_08 * 8 / 6, "Only the routed experts become more"),
    ("08.3", ACTIVE_08 + 2 * EXPERT_08, "Two more in each layer"),
    ("08.3", ACTIVE_08, "add two experts in every layer"),
    ("08.3", ACTIVE_08 + 8 * 40 * EXPERT_08, "not eight besides them"),
    ("08.3", 9_308_453_048, "one half of the model"),
    ("08.3", 18.3, "not billions of them"),
    ("08.3", 13_215_288_768, "Those are bytes"),
    ("08.4", 18_800_640 * 1979e12 / (2 * EXPERT_08 * 4.8e12), "must reach one expert"),
    ("08.4", 2 * 7_009, "two operations"),
    ("08.4", 7_009 * 8 / 4.25, "four bits a weight"),
    ("08.4", 3_500, "Set bytes / bandwidth equal"),
    ("08.4", 18_800_640 * 1979e12 / (2 * EXPERT_08 * 4.8e12) / 64, "A larger batch is needed"),
    ("08.4", 384 * 18_800_640 * 1979e12 / (2 * EXPERT_08 * 4.8e12), "to k experts, not to one"),
    ("08.5", 0.5, "Give a list"),
    ("08.5", [0.5, 1.0], "there are more"),
    ("08.5", [0.25, 0.5, 2.0], "Choose from the six"),
    ("08.5", [0.25, 0.375, 0.5, 1.0], "What does a weight do to the scale"),
    ("08.5", ["0.25", "0.5", "1.0"], "without quotes"),
]
