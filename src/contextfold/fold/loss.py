"""What a summary leaves out that is likely to be needed: identifiers, paths and numbers first seen in the branch. Pure.

No model is asked. What is needed later is not known at the return, so it is guessed from how the branch went:

    carried     seen in a result, then written by the model itself into a later call
    made        a path that the model wrote before any result showed it: a file of its own
    told        said in what a nested branch returned
    wanted      it stands near words of the branch's prompt
    again       in more than one operation, or more than once in a result that is no long listing
    last        in the last operation: what the branch ended with

and against: names the model used before it saw them, which it knows from elsewhere; what every result repeats; one of
a hundred items of a long listing. The weights were tuned on recorded runs (`bench/fold_loss.py`). What the prompt, the
description or the summary says is not lost; a redaction mark is no identifier.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from contextfold.fold.archive import Entry

ITEMS_MOST = 12  # that are told of one return
TEXT_HEAD, TEXT_TAIL = 4_000, 2_000  # characters read of a long text: where it begins, and where it ends
ITEM_LEAST, ITEM_LENGTH_MAX = 3, 120
WORDS_MOST = 48  # of a prompt
NEAR = 120  # characters on either side of such a word
DIGITS_LEAST = 3  # of a number: shorter ones are counts of this and that
CODED_LEAST = 4  # characters of letters and digits mixed
FOLDERS = 3  # parts that make a path of what might be this/or/that; two may be an alternative
FEW, MANY = 40, 64  # items in a result
OFTEN, REPEATED_MOST = 3, 6  # results that repeat an item; how often it is said before that tells nothing
SCORE_LEAST = 3

MODEL_TURNS = "model_turns"  # messages as a proxy saw them, each a line of JSON
MESSAGE = "message"  # what the model said to a person

_KINDS = {"coded": 2, "path": 1, "number": 1, "capitals": 0, "name": -1, "dotted": -1}

_MARK = re.compile(r"\[REDACTED:[^\]\s]{0,80}\]")
_LINE_NUMBER = re.compile(r"(?m)^[ \t]*\d+(?=[:\t|→])")
# A URL, a number, or a word of code. One with a quotation mark and a colon after it is a member's name, and no value.
_TOKEN = re.compile(
    r"(https?://[^\s\"'<>()\[\]{}`\\,;]++|\d{1,3}(?:,\d{3})++(?:\.\d++)?+"
    r"|(?:[~.]{1,2}/|(?<![</])/)?+[^\W_@][\w@+./-]*+|_[\w./-]++)(?![\"']\s?:)(\()?"
)
_NUMBER = re.compile(r"\d[\d.,/:T-]*")
_FILE = re.compile(r"[\w@+.-]*\w\.[A-Za-z][A-Za-z0-9]{0,4}")
_CAMEL = re.compile(r"[a-z][A-Z]")
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_WORD = re.compile(r"[A-Za-z]{4,}|\d{3,}|[A-Z]{3}")
_BY_MODEL = re.compile(r"\"role\"\s?:\s?\"assistant\"|\"type\"\s?:\s?\"(?:function_call|custom_tool_call)\"")
# Calls and results of our own tools: ids and figures that nobody will miss.
_OUR_OWN = re.compile(
    r"context_(?:branch|return|branch_status|list_branches|rollback|record)\"|\"(?:context_state|token_breakdown)\\*\""
)
_BLANKS = {"n": "\n", "r": "\n", "t": "\t"}
_COMMON = re.compile(
    r"also|could|files?|find|first|from|have|into|look|make|need|please|should|some|sure|that|them|then|there|they|this|"
    r"using|want|what|when|where|which|will|with|would|your"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """One operation of a branch: what the model wrote for it, and what it got."""

    written: str
    got: str
    told: bool = False  # by the model itself, in words that are meant to last


class Found(NamedTuple):
    kind: str
    times: int


@dataclass(slots=True)
class _Item:
    kind: str
    order: int
    written_first: bool
    operations: int = 0
    results: int = 0
    fewest: int = 0  # items in the shortest result it was in
    carried: bool = False
    written: bool = False
    told: bool = False
    wanted: bool = False
    last: int = 0
    times: int = 0  # in results


def pieces_of(entries: Iterable[Entry]) -> list[Piece]:
    """A trajectory's operations, as the model had them; what a rollback took back is left out."""
    made: list[Piece] = []
    for entry in entries:
        if entry.undone or not entry.text:
            continue
        if entry.kind == "child":
            made.append(Piece(_cut(entry.text), "", told=True))
        elif entry.kind == "operation":
            made.append(_piece(entry))
    return made


def fold_loss(known: str, pieces: Sequence[Piece], summary: str) -> list[str]:
    """The items that are likely to be missed, the likeliest first. `known` is the prompt and the description."""
    items = _items(known, pieces)
    there = names(known) | names(summary)
    kept = [name for name in items if not is_in(name, there)]
    scores = {name: _score(items[name], len(pieces)) for name in kept}
    kept = [name for name in kept if scores[name] >= SCORE_LEAST]
    kept.sort(key=lambda name: (-scores[name], -items[name].last, -items[name].times, items[name].order))
    return list(_distinct(kept))[:ITEMS_MOST]


def _piece(entry: Entry) -> Piece:
    if entry.type == MESSAGE:
        return Piece(_cut(entry.text), "")
    if entry.type == MODEL_TURNS:
        lines = [line for line in entry.text.split("\n") if not _OUR_OWN.search(line)]
        written = "\n".join(line for line in lines if _BY_MODEL.search(line))
        got = "\n".join(line for line in lines if not _BY_MODEL.search(line))
        return Piece(unescaped(_cut(written)), unescaped(_cut(got)))
    # Hosts' hooks give a call as its input, which is a line of JSON, and its result below.
    first, _newline, rest = entry.text.partition("\n") if entry.text.startswith("{") else ("", "", entry.text)
    return Piece(unescaped(_cut(first)), _cut(rest))


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_HEAD + TEXT_TAIL else f"{text[:TEXT_HEAD]}\n{text[-TEXT_TAIL:]}"


def unescaped(text: str) -> str:
    """What a string of JSON means, near enough: the text may be cut anywhere."""
    return _ESCAPED.sub(lambda found: _BLANKS.get(found[1], found[1] if len(found[1]) == 1 else " "), text)


def _items(known: str, pieces: Sequence[Piece]) -> dict[str, _Item]:
    words = _words(known)
    items: dict[str, _Item] = {}
    for place, piece in enumerate(pieces):
        written, got = found_in(piece.written), found_in(piece.got)
        wanted = _near(piece.got, words)
        for name, found in {**written, **got}.items():
            item = items.get(name)
            if item is None:
                item = items[name] = _Item(found.kind, len(items), name in written)
            if name in written:
                item.carried = item.carried or item.results > 0
                item.written = True
            if name in got:
                item.fewest = min(item.fewest or len(got), len(got))
                item.results += 1
                item.times += found.times
            item.operations += 1
            item.told = item.told or piece.told
            item.wanted = item.wanted or name in wanted
            item.last = place
    return items


def _score(item: _Item, operations: int) -> int:
    score = _KINDS[item.kind] + 3 * item.carried + 3 * item.told + item.wanted
    score += (item.operations > 1) + (item.last == operations - 1)
    if item.written_first and not item.told:
        score += 3 if item.kind == "path" else -2
    if item.kind == "path" and not item.written:
        score -= 1
    if 1 < item.times < REPEATED_MOST and item.fewest <= FEW:
        score += 1
    if item.fewest > MANY:
        score -= 2
    if item.results >= OFTEN and (not item.written or 5 * item.results >= 3 * operations):
        score -= 3
    return score


def found_in(text: str) -> dict[str, Found]:
    """Each item of a text, in the order of their first places."""
    found: dict[str, Found] = {}
    tokens = Counter(_TOKEN.findall(_LINE_NUMBER.sub("", _MARK.sub(" ", text)))) if text else {}
    for (token, is_called), times in tokens.items():
        name = _trimmed(token)
        before = found.get(name)
        if before is not None:
            found[name] = Found(before.kind, before.times + times)
        elif ITEM_LEAST <= len(name) <= ITEM_LENGTH_MAX and (kind := _kind(name, bool(is_called))):
            found[name] = Found(kind, times)
    return found


def _trimmed(token: str) -> str:
    name = token.rstrip(".,:;-+@/").removeprefix("./")
    return name.replace(",", "") if name[:1].isdigit() else name


def _kind(name: str, is_called: bool) -> str:  # noqa: PLR0911 - one return for each kind
    if name.isalpha():
        if _CAMEL.search(name):
            return "name"
        return "capitals" if name.isupper() else ""
    if name.startswith("http"):
        return "path" if "://" in name else _mixed(name)
    if _NUMBER.fullmatch(name):
        return "number" if sum(map(str.isdigit, name)) >= DIGITS_LEAST else ""
    if "/" in name:
        parts = [part for part in name.split("/") if part]
        is_path = name[0] in "/~." or len(parts) >= FOLDERS or "." in parts[-1]
        return "path" if is_path and any(map(str.isalpha, name)) else ""
    if "." in name:
        is_file = _FILE.fullmatch(name) and not is_called and name.index(".") > 1
        return "path" if is_file else "dotted"
    return _mixed(name)


def _mixed(name: str) -> str:
    if any(map(str.isdigit, name)):
        return "coded" if len(name) >= CODED_LEAST and any(map(str.isalpha, name)) else ""
    return "name" if "_" in name.strip("_") else ""


def _words(known: str) -> re.Pattern[str] | None:
    """The beginnings of what a prompt speaks of, so that a plural finds its singular."""
    words = dict.fromkeys(word.lower()[:6] for word in _WORD.findall(known) if not _COMMON.fullmatch(word.lower()))
    chosen = list(words)[:WORDS_MOST]
    return re.compile(rf"(?<![a-z0-9])(?:{'|'.join(map(re.escape, chosen))})") if chosen else None


def _near(text: str, words: re.Pattern[str] | None) -> set[str]:
    """What stands near one of the words, items and others."""
    lower = text.lower()
    if words is None or len(lower) != len(text):  # some letters have no small form of one character
        return set()
    near: set[tuple[str, str]] = set()
    begin = end = 0  # of what is near to the words seen so far that are near to each other
    for found in words.finditer(lower):
        if found.start() - NEAR > end:
            near.update(_TOKEN.findall(text, begin, end))
            begin = found.start() - NEAR
        end = found.end() + NEAR
    near.update(_TOKEN.findall(text, begin, end))
    return {_trimmed(token) for token, _is_called in near}


def names(text: str) -> set[str]:
    """What a text says, as it is compared: the last parts of paths too."""
    names = {name.casefold() for name in found_in(text)}
    return names | {name.rsplit("/", 1)[-1] for name in names}


def is_in(name: str, there: set[str]) -> bool:
    folded = name.casefold()
    return folded in there or folded.rsplit("/", 1)[-1] in there


def _distinct(names: Iterable[str]) -> Iterator[str]:
    """Without a path's other spellings: its name alone, or another way to the same file."""
    seen: set[str] = set()
    for name in names:
        last = name.casefold().rsplit("/", 1)[-1]
        if last not in seen:
            seen.add(last)
            yield name
