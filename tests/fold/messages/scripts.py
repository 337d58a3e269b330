"""What an agent did, step by step, independent of any API: the script of a generated history.

A step is a text of the user or the host, or a turn of the model with its calls and their results. The results of the
folding tools have the daemon's members in the daemon's order; a small session tracks the ids and the open branches.
All random choices come from the generator that is passed in.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

MAX_OPEN = 5
STEPS = (4, 20)
# Separators a client may put between its name for the server and the tool's name.
PREFIXES = (
    *("", "", "mcp__contextfold__", "mcp__contextfold__", "mcp_contextfold_", "contextfold.", "contextfold__"),
    *("MCP:", "contextfold-", "contextfold/", "mcp__my-server__", "contextfold_", "mcp0_", "my_server_"),
)
SUFFIXES = ("", "", "", "_mcp_contextfold")
REMINDER = "<system-reminder>\nKeep your list of tasks up to date.\n</system-reminder>"
QUOTE = "<system-reminder>\nThe user sent the following message:\n{}\n\nPlease address it.\n</system-reminder>"
# The beginnings of results in which hosts give a model what the user said, and whether the call counts as failed.
ANSWERS = {
    "The user doesn't want to proceed with this tool use. To tell you how to proceed, the user said:\n": True,
    "Permission denied. The user said: ": True,
    "User has answered your questions: ": False,
    "User has approved your plan. ": False,
    "exec command rejected by user: ": False,
    "The user rejected permission to use this tool call with the following feedback: ": True,
    "[Operation Cancelled] Reason: User denied execution. ": True,
    "Plan rejected. User feedback: ": False,
    "Wall time: 3 seconds\naborted by user: ": False,
    "<user_message>\n": False,
    "The user has declined to run this tool: ": False,
    "This call was cancelled by the user. ": False,
    # Only the tool shows that this is an answer.
    '{"answers": ': False,
}
ASKING_TOOLS = ("AskUserQuestion", "mcp__host__ask_user", "request_user_input", "exit_plan_mode")
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
    result: dict[str, Any] | str
    failed: bool = False
    # The branch that was opened, closed or rolled back to.
    branch_id: str | None = None
    discarded: tuple[str, ...] = ()
    id: str = ""
    picture: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    # The kind is say, system, turn, hosted (a tool of the API itself), or unknown (an element few readers know).
    kind: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    thinks: int = 0
    picture: bool = False
    # Results may arrive in another order than the calls.
    order: tuple[int, ...] = ()
    # Texts of the user that came with the results, where the API allows them.
    user_texts: tuple[str, ...] = ()
    # A text of the host came with the results.
    has_reminder: bool = False
    # The host has appended this text of the user to the last result; or it is the whole result.
    quoted: str = ""
    is_answer: bool = False
    # The model has searched for tools, and found one. Only Anthropic's API shows that in the messages.
    finds_tools: bool = False


@dataclass(slots=True)
class Session:
    """The daemon's state: the branches, and which of them are open, outermost first."""

    rng: random.Random
    open_branches: list[str] = field(default_factory=list)
    created: list[str] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    session_id: str = ""

    def new_id(self, kind: str) -> str:
        return f"{kind}_{self.rng.getrandbits(48):012x}"

    def _state(self) -> dict[str, Any]:
        tokens = self.rng.randrange(90_000)
        return {"active_branch_id": self.open_branches[-1] if self.open_branches else None, "total_tokens": tokens}

    def branch(self) -> dict[str, Any]:
        parent = self.open_branches[-1] if self.open_branches else None
        branch_id = self.new_id("br")
        self.open_branches.append(branch_id)
        self.created.append(branch_id)
        result = {"branch_id": branch_id, "session_id": self.session_id, "parent_branch_id": parent}
        return {**result, "created_at": 1e9, "branch_depth": len(self.open_branches), "context_state": self._state()}

    def fold(self, branch_id: str) -> dict[str, Any]:
        index = self.open_branches.index(branch_id)
        self.folded += self.open_branches[index:]
        del self.open_branches[index:]
        result = {
            "folded_at": 1e9,
            "branch_id": branch_id,
            "parent_branch_id": self.open_branches[-1] if self.open_branches else None,
        }
        summary = {"tokens_folded": 8500, "tokens_saved": 8300, "summary_redacted": False}
        health = {"warning": "none", "suggestion": "branch_id src/app.py error"}
        return {**result, "summary": summary, "context_state": self._state(), "context_health": health}

    def fold_afterwards(self) -> dict[str, Any]:
        """Folds with one call and without a branch: the id is new, and the open branches stay the same."""
        result = {
            "folded_at": 1e9,
            "branch_id": self.new_id("br"),
            "parent_branch_id": self.open_branches[-1] if self.open_branches else None,
        }
        summary = {"tokens_folded": 8500, "tokens_saved": 8300, "summary_redacted": False}
        return {**result, "summary": summary, "context_state": self._state(), "context_health": {"warning": "none"}}

    def roll_back(self, branch_id: str) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Discards later branches; a target that was folded is open again, as in the daemon."""
        later = self.created[self.created.index(branch_id) + 1 :]
        self.created = self.created[: len(self.created) - len(later)]
        self.open_branches = [branch for branch in self.open_branches if branch not in later]
        self.folded = [branch for branch in self.folded if branch not in later]
        if branch_id not in self.open_branches:
            self.folded.remove(branch_id)
            self.open_branches.append(branch_id)
        result = {"rolled_back_to": branch_id, "branches_discarded": later, "tokens_recovered": 12}
        return {**result, "context_state": self._state()}, tuple(later)


class ScriptWriter:
    """Writes a script, a step at a time."""

    def __init__(self, rng: random.Random, *, irregular_chance: float = 0.25) -> None:
        self.rng, self.irregular_chance = rng, irregular_chance
        self.session = Session(rng)
        self.session.session_id = self.session.new_id("sess")
        self.prefix = rng.choice(PREFIXES)
        self.suffix = rng.choice(SUFFIXES) if not self.prefix else ""
        self.steps: list[Step] = []
        self.thinks = rng.random() < 0.5
        self.unknown_chance = 0.1 if irregular_chance and rng.random() < 0.5 else 0.0
        # Some clients pass the output of their hooks on to the model.
        self.has_hooks = rng.random() < 0.2
        self.number = 0

    def write(self) -> list[Step]:
        rng = self.rng
        if rng.random() < 0.3:
            self.steps.append(Step("system", self._new_text()))
        self._say()
        actions: list[tuple[int, Callable[[], None]]] = [
            *((8, self._work), (9, self._branch), (11, self._return), (3, self._talk), (1, self._say)),
            *((1, self._system), (1, self._failed_branch), (1, self._failed_return), (1, self._roll_back)),
            *(
                (1, self._read_only_call),
                (1, self._similar_call),
                (4, self._fold),
                (1, self._failed_fold),
                (1, self._hosted_tool),
                (2, self._answer),
                (1, self._search_for_tools),
            ),
        ]
        weights, methods = [weight for weight, _ in actions], [method for _, method in actions]
        for _ in range(rng.randint(*STEPS)):
            rng.choices(methods, weights)[0]()
            if rng.random() < self.unknown_chance:
                self.steps.append(Step("unknown", self._new_text()))
        return self.steps

    def _new_text(self) -> str:
        self.number += 1
        return f"{self.number}: " + " ".join(self.rng.choices(WORDS, k=self.rng.randint(1, 12)))

    def _tool_name(self, verb: str) -> str:
        return f"{self.prefix}context_{verb}{self.suffix}"

    def _turn(self, *calls: Call) -> None:
        rng = self.rng
        calls_with_ids = tuple(replace(call, id=f"{rng.getrandbits(60):015x}") for call in calls)
        order = list(range(len(calls_with_ids)))
        if rng.random() < 0.3:
            rng.shuffle(order)
        thinks = rng.randint(1, 2) if self.thinks and rng.random() < 0.7 else 0
        text = self._new_text() if not calls_with_ids or rng.random() < 0.4 else ""
        user_texts = (
            tuple(self._new_text() for _ in range(rng.randint(1, 2))) if calls_with_ids and rng.random() < 0.12 else ()
        )
        if user_texts and rng.random() < 0.3:
            user_texts = tuple(QUOTE.format(each) for each in user_texts)
        has_reminder = bool(calls_with_ids) and rng.random() < 0.15
        quoted = QUOTE.format(self._new_text()) if calls_with_ids and rng.random() < 0.06 else ""
        step = Step(
            "turn",
            text,
            calls_with_ids,
            thinks,
            order=tuple(order),
            user_texts=user_texts,
            has_reminder=has_reminder,
            quoted=quoted,
        )
        self.steps.append(step)
        if self.has_hooks and calls_with_ids and rng.random() < 0.6:
            self._system()

    def _work_call(self) -> Call:
        name = self.rng.choice(("Bash", "read_file", "search", "Edit"))
        failed, picture = self.rng.random() < 0.15, self.rng.random() < 0.05
        # Without it, the failure could be what a user said.
        error = "Error: " if failed else ""
        if name == "Edit":
            edit = {"file_path": self.rng.choice(("a.py", "b.py")), "new_string": self._long_text()}
            return Call("work", name, edit, f"{error}{self._new_text()}", failed=failed)
        return Call(
            "work", name, {"q": self._new_text()}, f"{error}{self._long_text()}", failed=failed, picture=picture
        )

    def _long_text(self) -> str:
        """A text that is usually longer than the line that would replace it."""
        return self._new_text() * self.rng.choice((1, 12))

    def _work(self) -> None:
        self._turn(*(self._work_call() for _ in range(self.rng.choice((1, 1, 1, 2, 3)))))

    def _answer(self) -> None:
        """The user refuses a call or answers a question, and the host puts the words into the result."""
        beginning = self.rng.choice(list(ANSWERS))
        is_shared = beginning != '{"answers": ' and self.rng.random() < 0.3
        name = self.rng.choice(ASKING_TOOLS) if beginning.startswith("{") else "Bash"
        answer = Call("work", name, {"q": self._new_text()}, "", failed=ANSWERS[beginning])
        self._turn(*(replace(answer, arguments={"q": self._new_text()}) for _ in range(1 + is_shared)))
        self.steps[-1 if self.steps[-1].kind == "turn" else -2] = replace(
            self.steps[-1 if self.steps[-1].kind == "turn" else -2],
            quoted=f"{beginning}{self._new_text()}",
            is_answer=True,
        )

    def _search_for_tools(self) -> None:
        turn = len(self.steps)
        self._turn(Call("work", "ToolSearch", {"q": self._new_text()}, self._new_text()))
        if not self.steps[turn].quoted:
            self.steps[turn] = replace(self.steps[turn], finds_tools=True)

    def _shares_turn(self) -> bool:
        return self.rng.random() < self.irregular_chance

    def _with_other_calls(self, call: Call) -> list[Call]:
        calls = [call, *(self._work_call() for _ in range(self.rng.randint(1, 2)))]
        self.rng.shuffle(calls)
        return calls

    def _branch_call(self) -> Call:
        result = self.session.branch()
        arguments = {"description": self._new_text(), "prompt": self._new_text(), "project_path": "/p"}
        return Call("branch", self._tool_name("branch"), arguments, result, branch_id=result["branch_id"])

    def _branch(self) -> None:
        if len(self.session.open_branches) >= MAX_OPEN:
            return self._return()
        call = self._branch_call()
        if not self._shares_turn():
            return self._turn(call)
        if self.rng.random() < 0.2:
            return self._turn(call, self._branch_call())
        return self._turn(*self._with_other_calls(call))

    def _return_call(self, branch_id: str, *, names_branch: bool) -> Call:
        arguments = {"message": self._new_text(), "project_path": "/p"} | (
            {"branch_id": branch_id} if names_branch else {}
        )
        result = self.session.fold(branch_id)
        return Call("return", self._tool_name("return"), arguments, result, branch_id=branch_id)

    def _return(self) -> None:
        open_branches = self.session.open_branches
        if not open_branches:
            return self._branch()
        outer = self.rng.random() < 0.2
        branch_id = self.rng.choice(open_branches) if outer else open_branches[-1]
        call = self._return_call(branch_id, names_branch=outer or self.rng.random() < 0.5)
        if not self._shares_turn():
            return self._turn(call)
        if open_branches and self.rng.random() < 0.3:
            return self._turn(call, self._return_call(open_branches[-1], names_branch=False))
        if self.rng.random() < 0.2:
            return self._turn(call, self._branch_call())
        return self._turn(*self._with_other_calls(call))

    def _fold(self) -> None:
        arguments = {"message": self._new_text(), "project_path": "/p"}
        result = self.session.fold_afterwards()
        call = Call("fold", self._tool_name("fold"), arguments, result, branch_id=result["branch_id"])
        return self._turn(*self._with_other_calls(call)) if self._shares_turn() else self._turn(call)

    def _failed_fold(self) -> None:
        result = {"code": -32003, "message": "Cannot fold: nothing was done since the last fold", "data": {}}
        self._turn(Call("fold", self._tool_name("fold"), {"message": "x", "project_path": "/p"}, result, failed=True))

    def _hosted_tool(self) -> None:
        self.steps.append(Step("hosted", self._new_text()))

    def _failed_branch(self) -> None:
        arguments = {"description": "", "prompt": self._new_text(), "project_path": "p"}
        result = {"code": -32602, "message": "project_path must be absolute", "data": {"field": "project_path"}}
        self._turn(Call("branch", self._tool_name("branch"), arguments, result, failed=True))

    def _failed_return(self) -> None:
        """A return that fails: the branch does not exist or is not active, or the store is unavailable."""
        open_branches, folded = self.session.open_branches, self.session.folded
        arguments: dict[str, Any] = {"message": self._new_text(), "project_path": "/p"}
        if folded and self.rng.random() < 0.5:
            branch_id = self.rng.choice(folded)
            data = {"branch_id": branch_id, "current_status": "folded"}
            result = {"code": -32003, "message": "Cannot fold branch: branch is not active", "data": data}
        elif open_branches and self.rng.random() < 0.5:
            branch_id, data = open_branches[-1], {"branch_id": open_branches[-1], "current_status": "active"}
            result = {"code": -32603, "message": "State store is unavailable", "data": data}
        else:
            branch_id = self.session.new_id("br")
            data = {"branch_id": branch_id, "session_id": self.session.session_id}
            result = {"code": -32602, "message": f"Branch not found: {branch_id}", "data": data}
        self._turn(Call("return", self._tool_name("return"), arguments | {"branch_id": branch_id}, result, failed=True))

    def _roll_back(self) -> None:
        if not self.session.created:
            return self._branch()
        target = self.rng.choice(self.session.created)
        result, discarded = self.session.roll_back(target)
        arguments = {"project_path": "/p", "branch_id": target}
        name = self._tool_name("rollback")
        call = Call("rollback", name, arguments, result, branch_id=target, discarded=discarded)
        return self._turn(*self._with_other_calls(call)) if self._shares_turn() else self._turn(call)

    def _read_only_call(self) -> None:
        """Calls one of our tools that change nothing, though their results name branches."""
        known = self.session.created[-1] if self.session.created else None
        status = {"session_id": self.session.session_id, "active_branch_id": known, "branch_path": ["main", known]}
        page: dict[str, Any] = {"branch_id": known, "entries": [], "tokens": 3, "next_cursor": None}
        name, result = self.rng.choice((("context_branch_status", status), ("context_expand", page)))
        self._turn(Call("work", f"{self.prefix}{name}{self.suffix}", {"project_path": "/p"}, result))

    def _similar_call(self) -> None:
        """Calls a tool of another server whose name and result resemble ours."""
        branch_id = self.session.open_branches[0] if self.session.open_branches else self.session.new_id("br")
        name = self.rng.choice(("their_context_return", "context_returns", "their_context_branch", "context_branch_2"))
        self._turn(Call("work", name, {}, {"branch_id": branch_id, "session_id": "sess_000000000000"}))

    def _say(self) -> None:
        self.steps.append(Step("say", self._new_text(), picture=self.rng.random() < 0.1))

    def _talk(self) -> None:
        self._turn()
        self._say()

    def _system(self) -> None:
        """Adds a hook's output, or a text of the user that the host passes on as an instruction."""
        quoted = MEANWHILE.format(self._new_text()) if self.rng.random() < 0.2 else ""
        self.steps.append(Step("system", quoted or self._new_text(), quoted=quoted))


def truncated(rng: random.Random, steps: list[Step]) -> list[Step]:
    """The same work after the client has cut off the beginning."""
    start = rng.randrange(len(steps))
    return [Step("say", "Earlier messages were cut off."), *steps[start:]]


def result_text(rng: random.Random, client: int, call: Call) -> str:
    """A call's result as the text that a client passes to the model. Clients differ in its form."""
    if isinstance(call.result, str):
        return call.result
    result = {"error": call.result} if call.failed and client % 2 else call.result
    if call.failed and client % 2 == 0 and "current_status" not in json.dumps(result):
        return f"MCP error {call.result['code']}: {call.result['message']}"
    plain = json.dumps(result, ensure_ascii=rng.random() < 0.5, separators=(",", ":"))
    block = {"type": "text", "text": plain}
    shapes: tuple[Callable[[], str], ...] = (
        lambda: plain,
        lambda: json.dumps(result),
        lambda: json.dumps(result, indent=2),
        lambda: json.dumps(result, sort_keys=True),
        lambda: json.dumps(dict(reversed(result.items()))),
        lambda: json.dumps([block]),
        lambda: json.dumps({**block, "annotations": None, "meta": None}),
        lambda: json.dumps({"content": [block], "isError": call.failed}),
        lambda: json.dumps({"content": [block], "structuredContent": result, "isError": call.failed}, indent=1),
        lambda: json.dumps({"output": json.dumps([block]), "metadata": {"exit_code": 0}}),
        lambda: f"Wall time: 0.2 seconds\nOutput:\n{plain}",
    )
    return shapes[client % len(shapes)]()


CLIENT_COUNT = 11
