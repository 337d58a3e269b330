"""The expected results of relevance search, computed independently: slow and simple, with fractions.

Uses only sections and the words of a token from src; these have their own tests.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from contextfold.common.words import QUESTION_WORDS, read_token, stem_of, tokens
from contextfold.resolve.relevance.sections import outline

K1, B = Fraction(7, 5), Fraction(3, 5)
PAIR_K = 3
BIT = 1024


def log2(number: int) -> int:
    """The largest n with 2 ** (n / 1024) <= number, by comparing whole powers."""
    low, high = 0, 64 * BIT
    power = number**BIT
    while low < high:
        middle = (low + high + 1) // 2
        if 2**middle <= power:
            low = middle
        else:
            high = middle - 1
    return low


def idf(count: int, frequency: int) -> int:
    return max(log2(2 * count + 2) - log2(2 * frequency + 1), 16)


def saturated(weight: int, tf: int, length: int, average: int) -> int:
    if not tf:
        return 0
    k = K1 * (1 - B + B * Fraction(length, average))
    return int(weight * Fraction(tf) / (tf + k))


def fraction(tf: int, words: int, average: int) -> int:
    """tf / (tf + K) of a document in 65536ths."""
    return saturated(65536, tf, words, average)


class Counts(NamedTuple):
    plain: int
    marked: int
    parts: int

    def weigh(self, *weights: int) -> int:
        return sum(weight * number for weight, number in zip(weights, self, strict=True))


def capped(counts: Counter[tuple[str, str]], word: str) -> Counts:
    return Counts(min(counts["count", word], 15), min(counts["marked", word], 3), min(counts["parts", word], 3))


def counts_of(text: str, kind: str) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for token in tokens(text):
        read = read_token(token)
        counts.update((kind, word) for word in read.words)
        counts.update(("parts", part) for part in read.parts)
    return counts


def pairs_of(text: str) -> list[tuple[str, str]]:
    stems = [stem_of(word) for token in tokens(text) for word in read_token(token).words]
    return list(pairwise(stems))


class OracleDocument:
    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        title, sections = outline(path, text)
        self.headings = [section.headings for section in sections]
        self.front = counts_of(title, "count") + counts_of(path, "marked")
        self.sections = [
            counts_of(text[section.start : section.end], "count")
            + (counts_of(section.headings[-1], "marked") if section.headings else Counter())
            for section in sections
        ]
        self.section_words = [
            sum(n for (kind, _), n in counts_of(text[s.start : s.end], "count").items() if kind == "count")
            for s in sections
        ]
        self.words = sum(self.section_words)
        self.vocabulary = {word for counts in (self.front, *self.sections) for _, word in counts}
        self.pair_weight: Counter[tuple[str, str]] = Counter()
        for pair, number in Counter(pairs_of(title)).items():
            self.pair_weight[pair] += 5 * min(number, 15)
        for section in sections:
            if section.headings:
                for pair, number in Counter(pairs_of(section.headings[-1])).items():
                    self.pair_weight[pair] += 2 * min(number, 3)

    def tf(self, word: str) -> int:
        total = capped(self.front, word).weigh(5, 3, 1)
        total += sum(capped(section, word).weigh(1, 2, 1) for section in self.sections)
        return min(total, 255)

    def section_tf(self, number: int, stem: str) -> int:
        words = [word for word in self.vocabulary if stem_of(word) == stem]
        front = sum(capped(self.front, word).weigh(3, 1, 1) for word in words)
        return front + sum(capped(self.sections[number], word).weigh(1, 12, 1) for word in words)


def search(  # noqa: C901
    files: dict[str, str], query: str
) -> tuple[list[tuple[str, int]], list[tuple[str, int, int]]]:
    """Documents with their scores, best first; and (document, section, score), best first. For at most 60 files."""
    documents = [OracleDocument(path, files[path]) for path in sorted(files, key=str.encode)]
    count = len(documents)
    average = max(sum(document.words for document in documents) // count, 1)
    section_lengths = [length for document in documents for length in document.section_words]
    section_average = max(sum(section_lengths) // len(section_lengths), 1) if section_lengths else 1
    words: dict[str, list[str]] = {}
    order: list[str] = []
    for token in tokens(query):
        read = read_token(token)
        query_words = [word for word in read.words if word not in QUESTION_WORDS]
        for word in (*query_words, *read.parts):
            group = words.setdefault(stem_of(word), [])
            if word not in group:
                group.append(word)
        order += [stem_of(word) for word in query_words]
    scores = dict.fromkeys(range(count), 0)
    weights: dict[str, int] = {}
    for stem, written_words in words.items():
        tfs = [sum(d.tf(word) for word in d.vocabulary if stem_of(word) == stem) for d in documents]
        weights[stem] = idf(count, sum(1 for tf in tfs if tf))
        for number, document in enumerate(documents):
            scores[number] += 4 * weights[stem] * fraction(tfs[number], document.words, average)
        for word in written_words:
            weight = idf(count, sum(1 for d in documents if word in d.vocabulary))
            for number, document in enumerate(documents):
                scores[number] += weight * fraction(document.tf(word), document.words, average)
    for pair in dict.fromkeys(pairwise(order)):
        weight = idf(count, sum(1 for d in documents if d.pair_weight[pair]))
        for number, document in enumerate(documents):
            tf = min(document.pair_weight[pair], 255)
            scores[number] += 65536 * 2 * int(Fraction(weight * tf, tf + PAIR_K))
    ranked, sections = [], []
    for number, document in enumerate(documents):
        if not scores[number]:
            continue
        section_scores = [
            sum(
                max(saturated(weight, tf, document.section_words[position], section_average), 1)
                for stem, weight in weights.items()
                if (tf := document.section_tf(position, stem))
            )
            for position in range(len(document.sections))
        ]
        headings = document.headings
        total = scores[number] // 65536 + 4 * max(section_scores, default=0)
        ranked.append((-total, number))
        best = {
            heading: max(s for h, s in zip(headings, section_scores, strict=True) if h == heading)
            for heading in headings
        }
        sections += [
            (-(6 * score + 10 * best[heading] + total), number, position, score)
            for position, (heading, score) in enumerate(zip(headings, section_scores, strict=True))
            if score
        ]
    ranked.sort()
    sections.sort()
    return (
        [(documents[number].path, -negative) for negative, number in ranked],
        [(documents[number].path, position, score) for _, number, position, score in sections],
    )
