"""What `fold_loss` names at a return, against what later turns show was needed.

Runs of an agent are cut into branches: each row of tool turns, so many at most in one. A branch's prompt is what was
said before it, its summary what an agent might return with. Needed is what was first seen in the branch, is not in the
summary, and is written by the agent later on, before anything shows it to the agent again. The yardstick lists just as
many items for every return: those that the branch names most often.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from bench.figures import Figure, print_table, show, tell
from bench.trajectories import HERE, Message, Run, Turn, turns_of
from contextfold.fold import loss
from contextfold.fold.archive import Entry

LEAST, MOSTS = 2, (3, 6, 10)  # tool turns in a row that are a branch: so many at least, and at most
SUMMARY_LENGTH = 600
LEAST_BETTER = 0.95  # of what we find, the yardstick may find so much
SLOW_S = 0.02  # that a return may be held up, on the average
GENERATED = 12
TEXTS_KEPT = 10_000
_BLOCK = re.compile(r"```\w*\n(.*?)```", re.DOTALL)


class Said(NamedTuple):
    """A turn of the agent's: what it said, what it asked of its tools, and what it was told."""

    words: str
    call: str
    told: str


class Return(NamedTuple):
    prompt: str
    entries: list[Entry]
    summary: str
    before: list[str]  # all that the agent had read and written when it branched
    after: list[Said]


@dataclass(slots=True)
class Counted:
    returns: int = 0
    in_need: int = 0  # returns after which something was needed
    helped: int = 0  # and of these, those where something of it was named
    needed: int = 0
    listed: int = 0
    found: int = 0
    yardstick_found: int = 0
    seconds: float = 0.0


# ---- the returns of a run


def said(turn: Turn) -> Said:
    """Some agents act by a block of code at the end of what they say."""
    message = turn.messages[0]
    text, calls = _text(message), message.get("tool_calls") or ()
    told = "\n".join(map(_text, turn.messages[1:]))
    if calls:
        return Said(text, "\n".join(call["function"]["arguments"] for call in calls), told)
    blocks = _BLOCK.findall(text)
    return Said(_BLOCK.sub(" ", text), json.dumps({"command": blocks[-1]}) if blocks else "", told)


def next_words(turns: Sequence[Said], end: int) -> tuple[str, list[Said]]:
    """The agent's own words right after the branch; what it does with them comes later."""
    return turns[end].words[:SUMMARY_LENGTH], [turns[end]._replace(words=""), *turns[end + 1 :]]


def last_words(turns: Sequence[Said], end: int) -> tuple[str, list[Said]]:
    """The agent's words before the last call of the branch, and how the result begins."""
    last = turns[end - 1]
    return f"{last.words[:SUMMARY_LENGTH]} {last.told[: SUMMARY_LENGTH // 4]}".strip() or "Done.", list(turns[end:])


Summarise = Callable[[Sequence[Said], int], tuple[str, list[Said]]]
SUMMARIES: dict[str, Summarise] = {"next words": next_words, "last words": last_words}


def spans_of(turns: Sequence[Turn], most: int) -> Iterator[tuple[int, int]]:
    """The branches of a run, each from its first turn to the one after it."""
    begin = 0
    while begin < len(turns):
        end = begin
        while end < len(turns) and end - begin < most and turns[end].is_tool_turn:
            end += 1
        if end - begin >= LEAST and end < len(turns):  # what nothing comes after shows no need
            yield begin, end
        begin = max(end, begin + 1)


def returns_of(run: Run, most: int, summarise: Summarise) -> Iterator[Return]:
    head, turns = turns_of(run)
    spoken = list(map(said, turns))
    heard = "\n".join(map(_text, head))
    for begin, end in spans_of(turns, most):
        before = [heard, *(text for each in spoken[:begin] for text in each)]
        asked = next((each.told for each in reversed(spoken[:begin]) if not each.call), heard[-2_000:])
        summary, after = summarise(spoken, end)
        entries = [
            Entry("br", n, "", "operation", f"{each.call or '{}'}\n{each.told}", type="Bash", source="hook")
            for n, each in enumerate(spoken[begin:end], 1)
        ]
        yield Return(spoken[begin].words or asked, entries, summary, before, after)


def needed_of(one: Return) -> set[str]:
    """New in the branch, not in the summary, and written later by the agent before it is shown again."""
    known = loss.names(one.prompt) | loss.names(one.summary)
    known = known.union(*map(_known, one.before))
    new = {name for entry in one.entries for name in _named(entry.text) if not loss.is_in(name, known)}
    needed: set[str] = set()
    for each in one.after:
        needed |= new & (_named(each.call) | _named(each.words))
        new -= _named(each.told)
    return needed


def most_frequent(one: Return, number: int) -> list[str]:
    known = loss.names(one.prompt) | loss.names(one.summary)
    seen: Counter[str] = Counter()
    for entry in one.entries:
        seen.update({name: found.times for name, found in loss.found_in(loss.unescaped(entry.text)).items()})
    return [name for name, _ in seen.most_common() if not loss.is_in(name, known)][:number]


@lru_cache(TEXTS_KEPT)
def _named(text: str) -> frozenset[str]:
    return frozenset(loss.found_in(loss.unescaped(text)))


@lru_cache(TEXTS_KEPT)
def _known(text: str) -> frozenset[str]:
    return frozenset(loss.names(text))


def _text(message: Message) -> str:
    return str(message.get("content") or "")


# ---- figures


def counted(returns: Iterable[Return]) -> Counted:
    total = Counted()
    for one in returns:
        begin = time.perf_counter()
        listed = loss.fold_loss(one.prompt, loss.pieces_of(one.entries), one.summary)
        total.seconds += time.perf_counter() - begin
        needed = needed_of(one)
        found = needed.intersection(listed)
        total.returns += 1
        total.in_need += bool(needed)
        total.helped += bool(found)
        total.needed += len(needed)
        total.listed += len(listed)
        total.found += len(found)
        total.yardstick_found += len(needed.intersection(most_frequent(one, len(listed))))
    return total


def sets(folder: Path = HERE) -> dict[str, list[Run]]:
    """The runs of each file, or generated ones where there are none."""
    found = {path.stem: list(_read(path)) for path in sorted(folder.glob("*.jsonl"))}
    return found or {"generated": [generated(seed) for seed in range(GENERATED)]}


def _read(path: Path) -> Iterator[Run]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file):
            yield Run(f"{path.stem} {number + 1}", json.loads(line)["messages"])


def generated(seed: int, subtasks: int = 6, steps: int = 5, lines: int = 20) -> Run:
    """An agent that looks for a function, follows it from file to file, and edits the last one in the end."""
    draw = random.Random(seed)

    def line() -> str:
        number = draw.randrange(10_000)
        return f"src/part{number % 61}/module{number % 97}.py:{number}:    value_{number % 389} = compute({number})"

    messages: list[Message] = [{"role": "user", "content": "Mend what the tests say is broken, one after the other."}]
    for subtask in range(subtasks):
        path = f"src/found{draw.randrange(1000)}/target{seed}_{subtask}.py"
        for step in range(steps):
            command = (f"grep -rn broken{subtask} src", f"cat {path}", f"pytest -k part{draw.randrange(90)}")[
                min(step, 2)
            ]
            listed = [*(line() for _ in range(lines)), "exit status 0 of run_1000.sh", "in /home/me/project"]
            if step == 0:
                listed.insert(draw.randrange(lines), f"{path}:{draw.randrange(400)}:    raise Broken{subtask}")
            messages += _called(f"call_{subtask}_{step}", command, "\n".join(listed))
        messages.append({"role": "assistant", "content": "I know where it is now."})
        messages.append({"role": "user", "content": "Then mend it."})
        messages += _called(f"call_{subtask}", f"sed -i s/a/b/ {path}", "")
        messages.append({"role": "assistant", "content": "That is done."})
        messages.append({"role": "user", "content": "Go on."})
    return Run(f"generated {seed + 1}", messages)


def _called(call_id: str, command: str, output: str) -> list[Message]:
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    asked = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": call_id, "content": output},
    ]


def rows(folder: Path = HERE) -> Iterator[tuple[str, str, Counted]]:
    """For each set of runs and each kind of summary, what was counted over all lengths of branches."""
    for name, runs in sets(folder).items():
        for told, summarise in SUMMARIES.items():
            returns = (one for run in runs for most in MOSTS for one in returns_of(run, most, summarise))
            yield name, told, counted(returns)


def main(folder: Path = HERE) -> bool:
    tell("what folds lose")
    table: list[Sequence[str]] = [
        ("runs", "summary", "returns", "in need", "helped", "listed", "used later", "needed", "found", "a return")
    ]
    figures: list[Figure] = []
    for name, told, each in rows(folder):
        share = each.yardstick_found / each.found if each.found else float("inf")
        found = f"{each.found} of {each.needed} needed, {each.listed} listed"
        figures.append(
            Figure(f"{name}, {told}", found, f"the most frequent {each.yardstick_found}", share, LEAST_BETTER)
        )
        mean_s = each.seconds / max(1, each.returns)
        figures.append(
            Figure("  time for a return", f"{mean_s * 1e3:.1f} ms", f"{SLOW_S * 1e3:.0f} ms", mean_s / SLOW_S, 1.0)
        )
        precision = f"{each.found / max(1, each.listed):.0%}"
        recall = f"{each.found / max(1, each.needed):.0%}"
        cells = [each.returns, each.in_need, each.helped, each.listed, precision, each.needed, recall]
        table.append((name, told, *map(str, cells), f"{mean_s * 1e3:.1f} ms"))
    held = show("what folds lose", figures)
    print_table(table)
    return held
