"""Documents of made-up words and questions about them: each answer stands in the document and nowhere else.

A token is a word. The tasks follow published ones: `pairs` is multi-query associative recall (Arora et al. 2023,
arXiv:2312.04927), `needle` a needle in a haystack (Kamradt 2023), `copy` selective copying as a whole (Gu & Dao 2023,
arXiv:2312.00752), `induction` what induction heads do (Olsson et al. 2022, arXiv:2209.11895).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]

END, STOP, ASK, MARK, LIST = range(5)
"""Ids of the signs: end of a text, of a statement; before a question, a needle and a list."""
SIGNS = ("<end>", ".", "?", "!", ":")
VOCABULARY = 2048
"""Token ids: the signs, then the words."""


def words() -> tuple[str, ...]:
    """The text of every token id: the signs, then words of two syllables, all different."""
    syllables = [consonant + vowel for consonant in "bdfghjklmnprstvwz" for vowel in "aeiou"]
    count = len(syllables)
    numbers = range(VOCABULARY - len(SIGNS))
    return (*SIGNS, *(syllables[i % count] + syllables[(i + i // count) % count] for i in numbers))


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked after a document.

    Attributes:
        asked: (m,) token ids that follow the document.
        answer: (a,) token ids that are right after them.
        place: of the first token of the answer in the document, from 0.
    """

    asked: Ids
    answer: Ids
    place: int


@dataclass(frozen=True, slots=True)
class Document:
    """A text of `tokens` (n,) and what can be asked about it, in the order of the answers' places."""

    tokens: Ids
    questions: tuple[Question, ...]


def _words(rng: np.random.Generator, count: int) -> Ids:
    """`count` words, none twice."""
    return (rng.permutation(VOCABULARY - len(SIGNS))[:count] + len(SIGNS)).astype(np.int64)


def pairs(rng: np.random.Generator, length: int) -> Document:
    """`k v .` again and again, no key twice and no key a value: `? k` asks for v. About `length` tokens."""
    count = max(1, min(length // 3, (VOCABULARY - len(SIGNS)) // 2))
    drawn = _words(rng, 2 * count)
    keys, values = drawn[:count], rng.choice(drawn[count:], count)
    text = np.stack([keys, values, np.full(count, STOP)], axis=1).ravel()
    planted = zip(keys, values, strict=True)
    asked = (Question(np.array([ASK, key]), np.array([value]), 3 * i + 1) for i, (key, value) in enumerate(planted))
    return Document(text, tuple(asked))


def needle(rng: np.random.Generator, length: int) -> Document:
    """`! k v .` at a random place among other words, k and v nowhere else: `? k` asks for v."""
    key, value = _words(rng, 2)
    straw = rng.integers(len(SIGNS), VOCABULARY, max(4, length) - 4)
    straw = straw[(straw != key) & (straw != value)]
    place = int(rng.integers(0, len(straw) + 1))
    text = np.concatenate([straw[:place], [MARK, key, value, STOP], straw[place:]])
    return Document(text, (Question(np.array([ASK, key]), np.array([value]), place + 2),))


def copy(rng: np.random.Generator, length: int) -> Document:
    """`: a b c ...`, no word twice: `:` asks for the list again."""
    listed = _words(rng, max(1, length - 1))
    return Document(np.concatenate([[LIST], listed]), (Question(np.array([LIST]), listed, 1),))


def induction(rng: np.random.Generator, length: int) -> Document:
    """Words in no order: `? a`, of a word that stands there once, asks for the word behind it."""
    text = rng.integers(len(SIGNS), VOCABULARY, max(2, length))
    once = np.flatnonzero(np.bincount(text, minlength=VOCABULARY)[text[:-1]] == 1)
    asked = (Question(np.array([ASK, text[i]]), text[i + 1 : i + 2], int(i) + 1) for i in once)
    return Document(text, tuple(asked))


TASKS: Mapping[str, Callable[[np.random.Generator, int], Document]] = {
    "pairs": pairs, "needle": needle, "copy": copy, "induction": induction,
}  # fmt: skip
