"""The text that the training programs learn in tests: made, and the same bytes for ever.

What a test expects of losses must not change with the words of any document of this repository.
"""

from __future__ import annotations

import bisect
import itertools
import random

LETTERS = "etaoinshrdlucmfwypvbgkqjxz"


def _cumulative(count):
    """Weights of a vocabulary: the n-th entry is n times as rare as the first (Zipf)."""
    return list(itertools.accumulate(1 / n for n in range(1, count + 1)))


class _Draw:
    """Draws by random() alone: the one method whose numbers Python promises not to change."""

    def __init__(self, seed):
        self._random = random.Random(seed).random

    def below(self, count):
        return int(self._random() * count)

    def weighted(self, values, cumulative):
        return values[bisect.bisect(cumulative, self._random() * cumulative[-1])]


def make(seed=1, size=1 << 18):
    """`size` bytes: sections of prose and of indented lines; the seed makes the vocabulary."""
    draw = _Draw(seed)
    letters = _cumulative(len(LETTERS))
    vocabulary = sorted(
        {"".join(draw.weighted(LETTERS, letters) for _ in range(1 + draw.below(9))) for _ in range(500)}
    )
    weights = _cumulative(len(vocabulary))
    for i in range(len(vocabulary) - 1, 0, -1):  # else the common words would all begin with an a
        j = draw.below(i + 1)
        vocabulary[i], vocabulary[j] = vocabulary[j], vocabulary[i]
    parts, length = [], 0
    while length < size:
        indent, words = 4 * draw.below(6), 2 + draw.below(12)
        for _ in range(4 + draw.below(20)):
            line = " ".join(draw.weighted(vocabulary, weights) for _ in range(words))
            parts.append("%s%s%s\n" % (" " * indent, line, ".,:;"[draw.below(4)]))
            length += len(parts[-1])
        parts.append("\n")
        length += 1
    return "".join(parts).encode()[:size]
