"""What an agent did, step by step, independent of any API: the script of a generated history.

A step is what somebody said, or a turn of the model with its calls and their results. The folding tools' answers have
the daemon's members in the daemon's order; a small session tracks the ids and the open branches. All random choices
come from the generator that is passed in.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

MOST_OPEN = 5
STEPS = (4, 20)
# Separators a client may put between its name for the server and the tool's name.
PREFIXES = (
    *("", "", "mcp__contextfold__", "mcp__contextfold__", "mcp_contextfold_", "contextfold.", "contextfold__"),
    *("MCP:", "contextfold-", "contextfold/", "mcp__my-server__", "contextfold_", "mcp0_", "my_server_"),
)
SUFFIXES = ("", "", "", "_mcp_contextfold")
REMINDER = "<system-reminder>\nKeep your list of tasks up to date.\n</system-reminder>"
QUOTE = "<system-reminder>\nThe user sent the following message:\n{}\n\nPlease address it.\n</system-reminder>"
MEANWHILE = "The user sent a new message while you were working:\n{}\n\nIMPORTANT: address it."
WORDS = (
    *("alpha", "beta", "config.yaml", "42", "naïve", "東京", "\U0001f600", "{}", "[]", "\\", '"', "\n", "error:"),
    *("branch_id", '"branch_id": "br_000000000000"', "context_branch", '"error": 1', "br_fake", "isError", "\x7f"),
)


@dataclass(frozen=True, slots=True)
class Call:
    # The kind is branch, return, fold, rollback, or work for any other call of an agent.
    kind: str
    name: str
    arguments: dict[str, Any]
    answer: dict[str, Any] | str
    failed: bool = False
    # This is the branch that was opened, closed or rolled back to.
    branch_id: str | None = None
    discarded: tuple[str, ...] = ()
    id: str = ""
    picture: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    # The kind is say, system, turn, hosted (tools of the API itself), or strange, which a reader may not know.
    kind: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    thinks: int = 0
    picture: bool = False
    # Results may arrive in another order than the calls.
    order: tuple[int, ...] = ()
    # These are texts of the user that came with the results, where an API has room for them.
    beside: tuple[str, ...] = ()
    # A text of the host came with the results.
    reminded: bool = False
    # The host has appended these words of the user to the last result's text.
    quoted: str = ""


@dataclass(slots=True)
class Session:
    """The daemon's state: the branches, and which of them are open, outermost first."""

    dice: random.Random
    path: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    session_id: str = ""

    def new_id(self, kind: str) -> str:
        return f"{kind}_{self.dice.getrandbits(48):012x}"

    def _state(self) -> dict[str, Any]:
        tokens = self.dice.randrange(90_000)
        return {"active_branch_id": self.path[-1] if self.path else None, "total_tokens": tokens}

    def branch(self) -> dict[str, Any]:
        parent = self.path[-1] if self.path else None
        branch_id = self.new_id("br")
        self.path.append(branch_id)
        self.made.append(branch_id)
        told = {"branch_id": branch_id, "session_id": self.session_id, "parent_branch_id": parent}
        return {**told, "created_at": 1e9, "branch_depth": len(self.path), "context_state": self._state()}

    def fold(self, branch_id: str) -> dict[str, Any]:
        place = self.path.index(branch_id)
        self.folded += self.path[place:]
        del self.path[place:]
        told = {"folded_at": 1e9, "branch_id": branch_id, "parent_branch_id": self.path[-1] if self.path else None}
        summary = {"tokens_folded": 8500, "tokens_saved": 8300, "summary_redacted": False}
        health = {"warning": "none", "suggestion": "branch_id src/app.py error"}
        return {**told, "summary": summary, "context_state": self._state(), "context_health": health}

    def fold_afterwards(self) -> dict[str, Any]:
        """Folds with one call and without a branch: the id is new, and the open branches stay the same."""
        told = {
            "folded_at": 1e9,
            "branch_id": self.new_id("br"),
            "parent_branch_id": self.path[-1] if self.path else None,
        }
        summary = {"tokens_folded": 8500, "tokens_saved": 8300, "summary_redacted": False}
        return {**told, "summary": summary, "context_state": self._state(), "context_health": {"warning": "none"}}

    def roll_back(self, branch_id: str) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Discards later branches; a target that was folded is open again, as in the daemon."""
        later = self.made[self.made.index(branch_id) + 1 :]
        self.made = self.made[: len(self.made) - len(later)]
        self.path = [one for one in self.path if one not in later]
        self.folded = [one for one in self.folded if one not in later]
        if branch_id not in self.path:
            self.folded.remove(branch_id)
            self.path.append(branch_id)
        told = {"rolled_back_to": branch_id, "branches_discarded": later, "tokens_recovered": 12}
        return {**told, "context_state": self._state()}, tuple(later)


class Writer:
    """Writes a script, a step at a time."""

    def __init__(self, dice: random.Random, *, odd: float = 0.25) -> None:
        self.dice, self.odd = dice, odd
        self.session = Session(dice)
        self.session.session_id = self.session.new_id("sess")
        self.prefix = dice.choice(PREFIXES)
        self.suffix = dice.choice(SUFFIXES) if not self.prefix else ""
        self.steps: list[Step] = []
        self.thinks = dice.random() < 0.5
        self.strange = 0.1 if odd and dice.random() < 0.5 else 0.0
        # Some clients pass the output of their hooks on to the model.
        self.hooked = dice.random() < 0.2
        self.number = 0

    def write(self) -> list[Step]:
        dice = self.dice
        if dice.random() < 0.3:
            self.steps.append(Step("system", self._text()))
        self._say()
        actions: list[tuple[int, Callable[[], None]]] = [
            *((8, self._work), (9, self._branch), (11, self._return), (3, self._talk), (1, self._say)),
            *((1, self._system), (1, self._failed_branch), (1, self._failed_return), (1, self._roll_back)),
            *((1, self._look), (1, self._decoy), (4, self._fold), (1, self._failed_fold), (1, self._hosted)),
        ]
        weights, doings = [weight for weight, _ in actions], [doing for _, doing in actions]
        for _ in range(dice.randint(*STEPS)):
            dice.choices(doings, weights)[0]()
            if dice.random() < self.strange:
                self.steps.append(Step("strange", self._text()))
        return self.steps

    def _text(self) -> str:
        self.number += 1
        return f"{self.number}: " + " ".join(self.dice.choices(WORDS, k=self.dice.randint(1, 12)))

    def _named(self, verb: str) -> str:
        return f"{self.prefix}context_{verb}{self.suffix}"

    def _turn(self, *calls: Call) -> None:
        dice = self.dice
        named = tuple(replace(call, id=f"{dice.getrandbits(60):015x}") for call in calls)
        order = list(range(len(named)))
        if dice.random() < 0.3:
            dice.shuffle(order)
        thinks = dice.randint(1, 2) if self.thinks and dice.random() < 0.7 else 0
        text = self._text() if not named or dice.random() < 0.4 else ""
        beside = tuple(self._text() for _ in range(dice.randint(1, 2))) if named and dice.random() < 0.12 else ()
        if beside and dice.random() < 0.3:
            beside = tuple(QUOTE.format(each) for each in beside)
        reminded = bool(named) and dice.random() < 0.15
        quoted = QUOTE.format(self._text()) if named and dice.random() < 0.06 else ""
        step = Step("turn", text, named, thinks, order=tuple(order), beside=beside, reminded=reminded, quoted=quoted)
        self.steps.append(step)
        if self.hooked and named and dice.random() < 0.6:
            self._system()

    def _work_call(self) -> Call:
        name = self.dice.choice(("Bash", "read_file", "search"))
        failed, picture = self.dice.random() < 0.15, self.dice.random() < 0.05
        return Call("work", name, {"q": self._text()}, self._text(), failed=failed, picture=picture)

    def _work(self) -> None:
        self._turn(*(self._work_call() for _ in range(self.dice.choice((1, 1, 1, 2, 3)))))

    def _shares(self) -> bool:
        return self.dice.random() < self.odd

    def _with_others(self, call: Call) -> list[Call]:
        calls = [call, *(self._work_call() for _ in range(self.dice.randint(1, 2)))]
        self.dice.shuffle(calls)
        return calls

    def _branch_call(self) -> Call:
        answer = self.session.branch()
        asked = {"description": self._text(), "prompt": self._text(), "project_path": "/p"}
        return Call("branch", self._named("branch"), asked, answer, branch_id=answer["branch_id"])

    def _branch(self) -> None:
        if len(self.session.path) >= MOST_OPEN:
            return self._return()
        call = self._branch_call()
        if not self._shares():
            return self._turn(call)
        if self.dice.random() < 0.2:
            return self._turn(call, self._branch_call())
        return self._turn(*self._with_others(call))

    def _return_call(self, branch_id: str, *, named: bool) -> Call:
        asked = {"message": self._text(), "project_path": "/p"} | ({"branch_id": branch_id} if named else {})
        answer = self.session.fold(branch_id)
        return Call("return", self._named("return"), asked, answer, branch_id=branch_id)

    def _return(self) -> None:
        path = self.session.path
        if not path:
            return self._branch()
        outer = self.dice.random() < 0.2
        branch_id = self.dice.choice(path) if outer else path[-1]
        call = self._return_call(branch_id, named=outer or self.dice.random() < 0.5)
        if not self._shares():
            return self._turn(call)
        if path and self.dice.random() < 0.3:
            return self._turn(call, self._return_call(path[-1], named=False))
        if self.dice.random() < 0.2:
            return self._turn(call, self._branch_call())
        return self._turn(*self._with_others(call))

    def _fold(self) -> None:
        asked = {"message": self._text(), "project_path": "/p"}
        answer = self.session.fold_afterwards()
        call = Call("fold", self._named("fold"), asked, answer, branch_id=answer["branch_id"])
        return self._turn(*self._with_others(call)) if self._shares() else self._turn(call)

    def _failed_fold(self) -> None:
        answer = {"code": -32003, "message": "Cannot fold: nothing was done since the last fold", "data": {}}
        self._turn(Call("fold", self._named("fold"), {"message": "x", "project_path": "/p"}, answer, failed=True))

    def _hosted(self) -> None:
        self.steps.append(Step("hosted", self._text()))

    def _failed_branch(self) -> None:
        asked = {"description": "", "prompt": self._text(), "project_path": "p"}
        answer = {"code": -32602, "message": "project_path must be absolute", "data": {"field": "project_path"}}
        self._turn(Call("branch", self._named("branch"), asked, answer, failed=True))

    def _failed_return(self) -> None:
        """A return that fails: the branch does not exist or is not active, or the store is unavailable."""
        path, folded = self.session.path, self.session.folded
        asked: dict[str, Any] = {"message": self._text(), "project_path": "/p"}
        if folded and self.dice.random() < 0.5:
            named = self.dice.choice(folded)
            data = {"branch_id": named, "current_status": "folded"}
            answer = {"code": -32003, "message": "Cannot fold branch: branch is not active", "data": data}
        elif path and self.dice.random() < 0.5:
            named, data = path[-1], {"branch_id": path[-1], "current_status": "active"}
            answer = {"code": -32603, "message": "State store is unavailable", "data": data}
        else:
            named = self.session.new_id("br")
            data = {"branch_id": named, "session_id": self.session.session_id}
            answer = {"code": -32602, "message": f"Branch not found: {named}", "data": data}
        self._turn(Call("return", self._named("return"), asked | {"branch_id": named}, answer, failed=True))

    def _roll_back(self) -> None:
        if not self.session.made:
            return self._branch()
        target = self.dice.choice(self.session.made)
        answer, discarded = self.session.roll_back(target)
        asked = {"project_path": "/p", "branch_id": target}
        name = self._named("rollback")
        call = Call("rollback", name, asked, answer, branch_id=target, discarded=discarded)
        return self._turn(*self._with_others(call)) if self._shares() else self._turn(call)

    def _look(self) -> None:
        """Calls one of our tools that change nothing, though their answers name branches."""
        known = self.session.made[-1] if self.session.made else None
        status = {"session_id": self.session.session_id, "active_branch_id": known, "branch_path": ["main", known]}
        page: dict[str, Any] = {"branch_id": known, "entries": [], "tokens": 3, "next_cursor": None}
        name, answer = self.dice.choice((("context_branch_status", status), ("context_expand", page)))
        self._turn(Call("work", f"{self.prefix}{name}{self.suffix}", {"project_path": "/p"}, answer))

    def _decoy(self) -> None:
        """Calls a tool of another server whose name and answer resemble ours."""
        named = self.session.path[0] if self.session.path else self.session.new_id("br")
        name = self.dice.choice(("their_context_return", "context_returns", "their_context_branch", "context_branch_2"))
        self._turn(Call("work", name, {}, {"branch_id": named, "session_id": "sess_000000000000"}))

    def _say(self) -> None:
        self.steps.append(Step("say", self._text(), picture=self.dice.random() < 0.1))

    def _talk(self) -> None:
        self._turn()
        self._say()

    def _system(self) -> None:
        """Adds a hook's output, or words of the user that the host passes on as an instruction."""
        quoted = MEANWHILE.format(self._text()) if self.dice.random() < 0.2 else ""
        self.steps.append(Step("system", quoted or self._text(), quoted=quoted))


def truncated(dice: random.Random, steps: list[Step]) -> list[Step]:
    """The same work after the client has cut off the beginning."""
    cut = dice.randrange(len(steps))
    return [Step("say", "Earlier messages were cut off."), *steps[cut:]]


def spoken(dice: random.Random, client: int, call: Call) -> str:
    """A call's result as the text that a client passes to the model; clients differ in its form."""
    if isinstance(call.answer, str):
        return call.answer
    answer = {"error": call.answer} if call.failed and client % 2 else call.answer
    if call.failed and client % 2 == 0 and "current_status" not in json.dumps(answer):
        return f"MCP error {call.answer['code']}: {call.answer['message']}"
    plain = json.dumps(answer, ensure_ascii=dice.random() < 0.5, separators=(",", ":"))
    block = {"type": "text", "text": plain}
    shapes: tuple[Callable[[], str], ...] = (
        lambda: plain,
        lambda: json.dumps(answer),
        lambda: json.dumps(answer, indent=2),
        lambda: json.dumps(answer, sort_keys=True),
        lambda: json.dumps(dict(reversed(answer.items()))),
        lambda: json.dumps([block]),
        lambda: json.dumps({**block, "annotations": None, "meta": None}),
        lambda: json.dumps({"content": [block], "isError": call.failed}),
        lambda: json.dumps({"content": [block], "structuredContent": answer, "isError": call.failed}, indent=1),
        lambda: json.dumps({"output": json.dumps([block]), "metadata": {"exit_code": 0}}),
        lambda: f"Wall time: 0.2 seconds\nOutput:\n{plain}",
    )
    return shapes[client % len(shapes)]()


CLIENTS = 11
