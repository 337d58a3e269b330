"""The expected results of relevance search, computed independently: slow and simple, with fractions.

Uses only sections and the words of a token from src; these have their own tests.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise
from posixpath import dirname, join, normpath
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


def average_size(sets: list[set[str]]) -> int:
    return max(sum(map(len, sets)) // len(sets), 1) if sets else 1


def score_heading(weights: dict[str, int], stems: set[str], average: int) -> int:
    named = [weight for stem, weight in weights.items() if stem in stems]
    k = K1 * (1 - B + B * Fraction(len(stems), average))
    return sum(int(weight / (1 + k) * Fraction(len(named), len(stems))) for weight in named)


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
        counts.update(("marked" if kind == "marked" else "parts", part) for part in read.parts)
    return counts


def marked_stems(*fields: Counter[tuple[str, str]]) -> set[str]:
    return {stem_of(word) for counts in fields for kind, word in counts if kind == "marked"}


def pairs_of(text: str) -> list[tuple[str, str]]:
    stems = [stem_of(word) for token in tokens(text) for word in read_token(token).words]
    return list(pairwise(stems))


class OracleDocument:
    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        title, sections = outline(path, text)
        self.front = counts_of(title, "marked") + counts_of(path, "count")
        self.sections = [
            counts_of(text[section.start : section.end], "count")
            + (counts_of(section.headings[-1], "marked") if section.headings else Counter[tuple[str, str]]())
            for section in sections
        ]
        self.heading_stems = [marked_stems(section) for section in self.sections]
        self.titled_stems = [marked_stems(self.front) | stems for stems in self.heading_stems]
        self.section_words = [
            sum(n for (kind, _), n in counts_of(text[s.start : s.end], "count").items() if kind == "count")
            for s in sections
        ]
        self.words = sum(self.section_words)
        self.marked_words = [
            word for counts in (self.front, *self.sections) for kind, word in counts if kind == "marked"
        ]
        self.vocabulary = {word for counts in (self.front, *self.sections) for _, word in counts}
        self.pair_weight: Counter[tuple[str, str]] = Counter()
        for pair, number in Counter(pairs_of(title)).items():
            self.pair_weight[pair] += 5 * min(number, 3)
        for section in sections:
            if section.headings:
                for pair, number in Counter(pairs_of(section.headings[-1])).items():
                    self.pair_weight[pair] += 2 * min(number, 3)

    def tf(self, word: str) -> int:
        total = capped(self.front, word).weigh(3, 5, 1)
        total += sum(capped(section, word).weigh(1, 2, 1) for section in self.sections)
        return min(total, 255)

    def section_tf(self, number: int, stem: str) -> int:
        words = [word for word in self.vocabulary if stem_of(word) == stem]
        front = sum(capped(self.front, word).weigh(1, 3, 1) for word in words)
        return front + sum(capped(self.sections[number], word).weigh(1, 3, 1) for word in words)


def page_of(path: str) -> str:
    """The path without an extension, or that of the folder if it is a folder's index."""
    parts = [part for part in path.lower().split("/") if part]
    name = parts.pop() if parts else ""
    for extension in (".md", ".html"):
        name = name.removesuffix(extension)
    return "/".join(parts if name in ("index", "_index", "readme") else [*parts, name])


def link_texts(files: dict[str, str]) -> dict[str, list[set[str]]]:
    """The stems of the most frequent texts of links to each document, by its path."""
    paths: dict[str, str] = {}
    for path in sorted(files, key=str.encode):
        paths.setdefault(page_of(path), path)
    found: dict[str, Counter[str]] = {path: Counter() for path in files}
    for source, text in files.items():
        links = set()
        for before, after in pairwise(text.split("](")):
            words, target = before.rpartition("[")[2], after.partition(")")[0].partition("#")[0].partition("?")[0]
            if ":" in target or not target or "\n" in target + words or " " in target:
                continue
            parts = target.strip("/").split("/")
            if target.startswith("/"):
                pages = [page_of("/".join(parts[dropped:])) for dropped in range(min(4, len(parts)))]
            else:
                pages = [page_of(normpath(join(dirname(source), target)))]
            stems = " ".join(sorted(marked_stems(counts_of(words, "marked"))))
            if stems and page_of(source) not in pages:
                leads_to = next((paths[page] for page in pages if page in paths), "")
                # A page counts once for each way in which it writes the target.
                links.add((leads_to, stems, page_of(target) + target[:1]))
        for leads_to, stems, _ in links:
            if leads_to:
                found[leads_to][stems] += 1
    return {
        path: [set(stems.split()) for stems, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:8]]
        for path, counts in found.items()
    }


def search(  # noqa: C901, PLR0912, PLR0915
    files: dict[str, str], query: str
) -> tuple[list[tuple[str, int]], list[tuple[str, int, int]]]:
    """Documents with their scores, best first; and (document, section, score), best first. For at most 60 files."""
    documents = [OracleDocument(path, files[path]) for path in sorted(files, key=str.encode)]
    count = len(documents)
    average = max(sum(document.words for document in documents) // count, 1)
    section_lengths = [length for document in documents for length in document.section_words]
    section_average = max(sum(section_lengths) // len(section_lengths), 1) if section_lengths else 1
    heading_average = average_size([stems for document in documents for stems in document.heading_stems])
    titled_average = average_size([stems for document in documents for stems in document.titled_stems])
    headings = Counter(stem_of(word) for document in documents for word in document.marked_words)
    heading_count = count + len(section_lengths)
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
    links = link_texts(files)
    ranked, sections = [], []
    for number, document in enumerate(documents):
        if not scores[number]:
            continue
        text_scores = [
            sum(
                max(saturated(weight, tf, document.section_words[position], section_average), 1)
                for stem, weight in weights.items()
                if (tf := document.section_tf(position, stem))
            )
            for position in range(len(document.sections))
        ]
        heading_weights = {stem: idf(heading_count, headings[stem]) for stem in weights}
        heading_scores = [score_heading(heading_weights, stems, heading_average) for stems in document.heading_stems]
        titled_scores = [score_heading(heading_weights, stems, titled_average) for stems in document.titled_stems]
        total = scores[number] // 65536 + 4 * max(text_scores, default=0) + 3 * max(titled_scores, default=0)
        linked = max(
            (score_heading(heading_weights, stems, titled_average) for stems in links[document.path]), default=0
        )
        ranked.append((-total - 2 * linked, number))
        own = [by_text + 3 * by_heading for by_text, by_heading in zip(text_scores, heading_scores, strict=True)]
        best = own.index(max(own)) if any(own) else -1
        for position, score in enumerate(own):
            if position == best:
                shown = score + linked // 2
                sections.append((-(20 * shown + 5 * total), number, position, shown))
            elif score:
                sections.append((-(20 * score + 4 * total), number, position, score))
    ranked.sort()
    sections.sort()
    for at, (place, number, position, score) in enumerate(sections):
        if sum(1 for _, other, _, _ in sections[:at] if other == number) >= 3:
            sections[at] = (-(-place * 19 // 20), number, position, score)
    sections.sort()
    return (
        [(documents[number].path, -negative) for negative, number in ranked],
        [(documents[number].path, position, score) for _, number, position, score in sections],
    )
