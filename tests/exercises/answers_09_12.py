"""Answers to the exercises of chapters 09 to 12: right ones, and mistakes with words of the remark that each gets."""

import math

import torch

PRIMES_09 = (16000057, 16000189, 16000339)
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


def first_heads(window):
    """Rows of heads 0, 1 and 2 of the 2-gram in the released layer 1, for a window without dead places."""
    mixed = window[0] * MULTIPLIERS_09[0] ^ window[1] * MULTIPLIERS_09[1]
    rows, offset = [], 0
    for prime in (16000057, 16000079, 16000081):
        rows.append(mixed % prime + offset)
        offset += prime
    return rows


def stand_and_replace(target, drafter):
    left = [max(a - b, 0.0) for a, b in zip(target, drafter, strict=True)]
    stand = 1 - sum(left)
    return stand, [one / sum(left) for one in left] if sum(left) > 1e-9 else list(target)


def span_letters(columns, rows):
    return "S" + rows * (columns * "I" + "N") + "E"


def combined(first, second, fades=True, largest=max):
    """Two partial softmaxes as one; fades off forgets that their maxima differ."""
    top = largest(first[0], second[0])
    weights = [math.exp(part[0] - top) if fades else 1.0 for part in (first, second)]
    return top, *(weights[0] * first[i] + weights[1] * second[i] for i in (1, 2))


def combined_with_infinities(first, second):
    """What comes of a maximum that starts at minus infinity."""
    top, total, value = combined(first, second)
    return (top, total, math.nan if min(first[0], second[0]) < -1e29 else value)


def combined_growing(first, second):
    """The weights the wrong way round: a part with a smaller maximum grows."""
    top = max(first[0], second[0])
    weights = [math.exp(top - part[0]) for part in (first, second)]
    return top, *(weights[0] * first[i] + weights[1] * second[i] for i in (1, 2))


def combined_and_divided(first, second):
    """The mean of the values in place of their weighted sum."""
    top, total, value = combined(first, second)
    return top, total, value / total


RIGHT = {
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
}

# A mistake that somebody will make, and words of the remark that it should get.
WRONG = [
    ("09.1", 12_672, "stops at 4-grams"),
    ("09.1", 32 * 264, "there is another"),
    ("09.1", 2 * 32 * 256, "scales, too"),
    ("09.1", 264, "Orders times heads"),
    ("09.1", 2 * 8 * 264, "what the 5-grams add"),
    ("09.1", 2 * 40 * 264, "One order too many"),
    ("09.1", 64, "That counts rows"),
    ("09.1", 16.9, "without a prefix"),
    ("09.2", (2**63 - 1) // 82619226485591, "one more"),
    ("09.2", 99_092, "the published size"),
    ("09.2", 2**53 // 82619226485591 + 1, "limit for doubles"),
    ("09.2", 2**63 // 129_280, "the largest of the eight"),
    ("09.2", (2**63 - 1) / 82619226485591, "Ids are whole numbers"),
    ("09.2", 2**64 // 82619226485591, "without a sign"),
    ("09.2", (2**63 - 1) // MULTIPLIERS_09[0] + 1, "four multipliers of its own"),
    ("09.3", 24, "Give the function itself"),
    ("09.3", lambda token: 24, "For token 1 it gives 24. Count the n-grams"),
    ("09.3", lambda token: (3 - token) * 8, "For token 10 it gives -56. No window there"),
    ("09.3", lambda token: 1 / token, "it raises ZeroDivisionError"),
    ("09.3", lambda token: None, "needs a return"),
    ("09.3", lambda token: max(3 - token, 0), "which counts orders"),
    ("09.3", lambda token: max(3 - token, 0) * 16, "for both layers"),
    ("09.4", [1, 2, 3], "Give the function itself"),
    ("09.4", lambda window: engram_rows(window, offsets=(0, 0, 0)), "These are remainders"),
    ("09.4", lambda window: engram_rows(window, pad=-1), "replaced by the pad token"),
    ("09.4", lambda window: engram_rows(window, block=False), "hides all that lie behind"),
    ("09.4", lambda window: engram_rows(window, rounds=float), "Products of ids and multipliers"),
    ("09.4", lambda window: engram_rows(window)[0], "Return 3 rows"),
    ("09.4", lambda window: window[4], "it raises IndexError"),
    ("09.4", lambda window: None, "needs a return"),
    ("09.4", lambda window: [row + 0.5 for row in engram_rows(window)], "Return 3 rows"),
    ("09.4", lambda window: engram_rows(window[::-1]), "begins with the newest token"),
    ("09.4", first_heads, "the first heads of the 2-gram"),
    ("09.5", 4_710, "the birthday question"),
    ("09.5", 8_000_028, "Half as many n-grams as buckets"),
    ("09.5", 16_000_057, "(1 - 1/b)^(r-1)"),
    ("09.5", math.log(2), "That is the load"),
    ("09.5", 16_000_057 * math.log10(2), "natural logarithm"),
    ("10.1", (1 - 0.8**6) / 0.2 - 1, "one more token comes out"),
    ("10.1", 5, "only if all before it stand"),
    ("10.1", 2, "0.8 to the j"),
    ("10.1", 0.8**5, "how often all five stand"),
    ("10.1", ((1 - 0.8**6) / 0.2 - 1) / 5, "share of the drafts"),
    ("10.2", 2_703_360, "each draft layer has a window"),
    ("10.2", 43 * 128 * 512, "one byte for 32 channels"),
    ("10.2", 1, "bytes of a row"),
    ("10.2", 3 * 128 * 528, "draft layers alone"),
    ("10.2", 43 * 128 * 288, "kept in FP8"),
    ("10.2", 2 * 2_906_112, "key and value at once"),
    ("10.2", 2.906, "without a prefix"),
    ("10.3", 0.5, "Give the function itself"),
    ("10.3", lambda target, drafter: 1, "it gives no number and list"),
    ("10.3", lambda target, drafter: (1.0, target), "Draft x comes up q(x)"),
    ("10.3", lambda target, drafter: (stand_and_replace(target, drafter)[0], target), "more of than the drafter"),
    ("10.3", lambda target, drafter: (stand_and_replace(target, drafter)[0], [0.0] * len(target)), "sum to 0"),
    ("10.3", lambda target, drafter: 1 / 0, "Mind equal distributions"),
    ("10.3", lambda target, drafter: target[9], "it raises IndexError"),
    ("10.3", lambda target, drafter: (math.nan, stand_and_replace(target, drafter)[1]), "that nan of the drafts stand"),
    ("10.3", lambda t, d: (1 - stand_and_replace(t, d)[0], stand_and_replace(t, d)[1]), "drafts that are replaced"),
    ("10.3", lambda target, drafter: (stand_and_replace(target, drafter)[0], target[:1]), "every token has one"),
    ("10.3", lambda t, d: (stand_and_replace(t, d)[0], stand_and_replace(d, t)[1]), "the other way round"),
    (
        "10.3",
        lambda target, drafter: (1.0, [0.0, 0.0]) if target == drafter else stand_and_replace(target, drafter),
        "Give the target itself",
    ),
    ("10.4", 5, "What is a millisecond worth"),
    ("10.4", 2, "while expected tokens over time rise"),
    ("10.4", [4], "Give a number"),
    ("10.4", 3, "a product already"),
    ("10.4", 3.4, "How many drafts go in"),
    ("11.1", 31 * 18, "Newlines and delimiters"),
    ("11.1", 18 * 32, "the delimiters"),
    ("11.1", 31 * 19 + 2, "not each column"),
    ("11.1", 1, "Round up twice"),
    ("11.1", 18 * 31 + 2, "one follows each row"),
    ("11.1", 18 * 32 + 1, "a delimiter at both ends"),
    ("11.1", 17 * 31 + 2, "round up, not down"),
    ("11.1", 92 * 52, "Nine of them make a token"),
    ("11.1", (18 * 32 + 2) * 890, "asks for positions"),
    ("11.2", 31, "two whole numbers"),
    ("11.2", (0, 5), "at least 1"),
    ("11.2", (32, 32), "1,058 positions"),
    ("11.2", (31, 31), "fewer rows"),
    ("11.2", (100, 10), "a grid with more"),
    ("11.2", (1, 1021), "Columns come first"),
    ("11.2", (31.5, 31), "two whole numbers"),
    ("11.2", ("1021", "1"), "two whole numbers"),
    ("11.3", "SE", "Give the function itself"),
    ("11.3", lambda columns: "", "called with two numbers"),
    ("11.3", lambda columns, rows: 5, "a string is wanted"),
    ("11.3", lambda columns, rows: "S" + "I" * columns * rows + "E", "letters; the span has"),
    ("11.3", lambda columns, rows: "S" + ("N" + "I" * columns) * rows + "E", "the order is not"),
    ("11.3", lambda columns, rows: columns[rows], "raises TypeError"),
    ("11.3", lambda columns, rows: 1 / 0, "it raises ZeroDivisionError"),
    ("11.3", lambda columns, rows: None, "needs a return"),
    ("11.3", lambda columns, rows: span_letters(columns, rows).lower(), "as capitals"),
    ("11.3", lambda columns, rows: span_letters(columns, rows)[1:-1], "Start and end are missing"),
    ("11.3", lambda columns, rows: span_letters(rows, columns), "takes one for the other"),
    ("11.4", 555, "three whole numbers"),
    ("11.4", (5000 % 1024, 1, 1), "channel-major"),
    ("11.4", (555, 2, 1), "rows come before columns"),
    ("11.4", (0, 0, 0), "Index = channel"),
    ("11.4", (1, 2, 555), "The channel comes first"),
    ("11.4", (556, 2, 3), "Count from 0"),
    ("11.4", (555, 0, 5), "three to a row"),
    ("12.1", 512 * 288, "every layer read beside them"),
    ("12.1", 128 * 528, "That is the window"),
    ("12.1", 2 * 512 * 288 + 128 * 528, "key and value at once"),
    ("12.1", 640 * 288, "one format"),
    ("12.1", 30 * 215_040, "all Reuse layers read together"),
    ("12.1", 2**16 * 288 + 128 * 528, "every main record of the context"),
    ("12.1", 215_040 + 2**17 * 68, "where a selection is made"),
    ("12.1", 210, "without a prefix"),
    ("12.2", 7_456_540, "One slot before"),
    ("12.2", 2**32 // 288 + 1, "int32 has a sign"),
    ("12.2", 2**31, "largest offset"),
    ("12.2", 2**31 / 288, "A slot is a whole number"),
    ("12.2", 2**31 // 256, "A record has scales"),
    ("12.2", 2**31 // 528, "the stride of window rows"),
    ("12.2", 12_345, "largest offset"),
    ("12.3", 132 / 32, "Splits are whole"),
    ("12.3", 4, "Splits are whole"),
    ("12.3", 17, "does not take all heads"),
    ("12.3", 132, "without a split"),
    ("12.3", 33, "for one sequence"),
    ("12.3", 1, "one program takes several"),
    ("12.3", 160, "Those are the programs"),
    ("12.4", -1.5, "Give a pair"),
    ("12.4", (-1.5, -0.1875, 0.0), "Give a pair"),
    ("12.4", (-0.1875, -1.5), "in the low nibble"),
    ("12.4", (-4.0, -0.5), "Multiply by the scale"),
    ("12.4", (1.5, -0.1875), "sign bits"),
    ("12.4", (-1.5, -0.375), "bias 7"),
    ("12.4", "12", "Give a pair"),
    ("12.4", (-4.0 * 44, -0.5 * 44), "not an integer"),
    ("12.4", (-(2.0**-81), -(2.0**-84)), "reads the scale as E8M0"),
    ("12.4", (-1.5, -0.28125), "it is subnormal"),
    ("12.4", (-3.0, -0.375), "bias 7"),
    ("12.5", (3.0, 1.0, 1.0), "Give the function itself"),
    ("12.5", lambda first, second: first[0], "Return three numbers"),
    ("12.5", combined_with_infinities, "has a NaN in it"),
    ("12.5", lambda first, second: combined(first, second, largest=min), "has the maximum 1."),
    ("12.5", lambda first, second: (first[0] + second[0], 1.0, 1.0), "has the maximum 4"),
    ("12.5", lambda first, second: combined(first, second, fades=False), "relative to different maxima"),
    ("12.5", lambda first, second: (*combined(first, second)[:2], first[2] + second[2]), "which weights"),
    ("12.5", combined_growing, "it does not grow"),
    ("12.5", lambda one, two: combined(one, two) if one[0] < two[0] else combined_growing(one, two), "overflows"),
    ("12.5", lambda first, second: first[3], "raises IndexError"),
    ("12.5", combined_and_divided, "so that it can be combined again"),
]
