"""A day of real Claude Code in one folder, and a table of what the provider received beside what we said of it.

    python -m tests.clients.truth_days [claude-newest | claude-pinned]

Three runs with `-p`: the second folds, the third starts a subagent. Then a conversation on a terminal: reading, a fold,
a pause that is longer than the provider's prompt cache lives, a compaction, `/clear`. Then a run that goes on with
`--continue`. Then a conversation that a request for a title precedes: a file is edited and read again, the user refuses
a call with words, the model changes, and the conversation is forked. All of it is one project, and each conversation is
a session of its own. The provider is scripted and counts the bytes that it receives; every figure that we show must be
one that it has counted.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from contextfold.cli.hook import abbreviate
from contextfold.common.answer_format import format_count
from tests.clients.host_days import HOSTS, KEYS, TIMEOUT_S, Day, Host, day_folder, is_conversation
from tests.support.daemon import Http, HttpAgent
from tests.support.machine import COMMAND, Ran, run_command
from tests.support.prerequisites import HOST_PROGRAMS, NO_CLAUDE
from tests.support.upstream import ReceivedRequest
from tests.support.upstream_answers import Call, Say
from tests.support.waiting import until

# Longer than any provider keeps a prompt.
PAUSE_S = 25 * 3600
CLAUDE_OPTIONS = ("--model", "claude-sonnet-4-5", "--allowedTools", "mcp__contextfold", "Read", "Edit", "Task", "Agent")
OTHER_MODEL = ("--model", "claude-opus-4-5", *CLAUDE_OPTIONS[2:])
REFUSAL = "NEVER touch prod."
# The keys with which a user chooses "No" of three answers, and says why.
REFUSES = ("\x1b[B", "\x1b[B", "\t", REFUSAL, "\r")
KEY_S = 0.5
# Rows and columns of the terminal.
TERMINAL = struct.pack("HHHH", 50, 160, 0, 0)
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?<>=]*[a-zA-Z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][AB0]|[=>78M])")
SUBAGENT_PROMPT = "Look at gamma and say whether it is fine."
# The answer of the tool, and the line in the place of a result, as JSON texts in a request.
FOLD = re.compile(r'branch_id\\+":\\+"(br_[0-9a-f]{16})\\+".{0,200}?tokens_folded\\+":(\d+)')
STUB = re.compile(r"\[contextfold: [^\]]*?, ([\d,]+) tokens, left out[^\]]*?(res_[0-9a-f]+)")
ADVICE = re.compile(r"contextfold: (?:every request sends|the main thread holds|branch br_)")
ADVISED_FROM_TOKENS = 25_000
# What the status line says if it would have to wait longer than a status bar does.
BUSY, STATUSLINE_TRIES = "the daemon is busy", 20
SUMMARY_REQUEST = "create a detailed summary"


class Terminal:
    """A program on a terminal in which a person types."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.shown = ""
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, TERMINAL)
        self._process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env=env, cwd=folder, start_new_session=True
        )
        os.close(slave)

    def _read(self, seconds: float) -> None:
        """Take what the program writes for so long; it would stop if nobody did."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and select.select([self._master], [], [], left_s)[0]:
            try:
                self.shown += os.read(self._master, 1 << 16).decode("utf-8", "replace")
            except OSError:
                return

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        until_s = time.monotonic() + TIMEOUT_S
        while not is_so():
            assert time.monotonic() < until_s, self.text[-3000:]
            assert self._process.poll() is None, self.text[-3000:]
            self._read(0.2)

    def shows(self, text: str) -> bool:
        """Whether a text was shown. Programs move the cursor instead of writing spaces."""
        return "".join(text.split()) in "".join(self.text.split())

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self.shown).replace("\r", "\n")

    def type(self, line: str) -> None:
        # Return in the same read as the text would be a line break in the text.
        self.press(line, "\r")

    def press(self, *keys: str) -> None:
        for each in keys:
            os.write(self._master, each.encode())
            self._read(KEY_S)

    def end(self) -> str:
        """Leave the program; what was shown last."""
        before = len(self.shown)
        self.type("/exit")
        until_s = time.monotonic() + TIMEOUT_S
        while self._process.poll() is None:
            assert time.monotonic() < until_s, self.text[-3000:]
            self._read(0.2)
        self._read(KEY_S)
        os.close(self._master)
        return ESCAPES.sub("", self.shown[before:]).replace("\r", "\n")


class Conversation(NamedTuple):
    """A host's conversation, or a subagent of one."""

    id: str
    agent: str


class Figures(NamedTuple):
    """In tokens: the last prompt, all prompts, what folds have removed, and the old results that are left out."""

    prompt: int
    sent: int
    folded: int
    left_out: int

    def __str__(self) -> str:
        return " / ".join(f"{figure:,}" for figure in self)


class Row(NamedTuple):
    """What each side says after a step."""

    step: str
    cells: Mapping[str, str]


class TruthDay(Day):
    def __init__(self, host: Host, folder: Path) -> None:
        super().__init__(host, folder)
        self.upstream.script = self._answer
        self.rows: list[Row] = []
        self.wrong: list[str] = []
        known = {
            "hasCompletedOnboarding": True,
            "theme": "dark",
            "customApiKeyResponses": {"approved": [KEYS["ANTHROPIC_API_KEY"][-20:]], "rejected": []},
            "projects": {str(self.project): {"hasTrustDialogAccepted": True, "hasCompletedProjectOnboarding": True}},
        }
        (folder / "home" / ".claude.json").write_text(json.dumps(known))
        self.env |= {"TERM": "xterm-256color"}

    # ---- the model

    def _answer(self, body: Any, api: str) -> Say:
        messages = body.get("messages", ())
        first, last = json.dumps(messages[:1]), json.dumps(messages[-1:])
        if SUMMARY_REQUEST in last:
            return Say("<summary>Alpha to epsilon were read. All of them are fine.</summary>")
        if is_conversation(body) and SUBAGENT_PROMPT in first:
            if "tool_result" in last:
                return Say("Gamma is fine.")
            return Say("", (self.host.read("call_sub", str(self._write("gamma"))),))
        # Thinking that is left out leaves no line in its place, so the requests would not show it.
        return replace(self.model(body, api), thought="")

    def _write(self, name: str) -> Path:
        path = self.project / f"{name}.txt"
        path.write_text("".join(f"{name} line {number} of a long file\n" for number in range(400)))
        return path

    def delegate(self, tool: str) -> None:
        """Let the model start a subagent next."""
        arguments = {"description": "gamma", "prompt": SUBAGENT_PROMPT, "subagent_type": "general-purpose"}
        self.model.will_say(Say("", (Call("call_agent", tool, arguments),)))

    # ---- what the provider received

    def received(self, conversation: Conversation | None = None) -> list[ReceivedRequest]:
        got = [each for each in self.upstream.requests if each.billed]
        return [each for each in got if conversation in (None, conversation_of(each))]

    def last_conversation(self) -> Conversation:
        return next(conversation_of(each) for each in reversed(self.received()) if is_main(each))

    # ---- the steps

    def run(self, step: str, *words: str, options: Sequence[str] = CLAUDE_OPTIONS) -> None:
        begins = len(self.received())
        said = self._run_program(*words, *options)
        self.compare(step, self.received()[begins:], said)

    def run_other(self, step: str, words: Sequence[str], before: Sequence[ReceivedRequest] = ()) -> Sequence[Any]:
        """A run of a program that has one conversation; `before` are its requests in an earlier run.

        Returns the requests of the conversation.
        """
        begins = len(self.received())
        said = self._run_program(*words)
        run = self.received()[begins:]
        # A request for a title is a conversation of its own, unless the program says which one it is for.
        conversation = [*before, *(each for each in run if conversation_of(each).id or not is_title(each))]
        status = json.loads(self._context("fold", "status", "--store", str(self.daemon.store), "--json").out)
        with Http(self.daemon.port) as client:
            view = client.ask("GET", f"/v1/sessions/{status['session_id']}").json["session"]
        cells = self._compare(step, conversation, view)
        cells["statusline"] = self._statusline(step, "", view)
        cells["last line"] = self._last_line(step, run, said)
        self.rows.append(Row(step, cells))
        return conversation

    def _run_program(self, *words: str) -> str:
        """What `context run` says on stderr."""
        argv = [str(COMMAND), "run", "--url", self.daemon.url, self.program.name, *words]
        done = subprocess.run(
            argv,
            cwd=self.project,
            env=self.env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{argv}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stderr

    def compare(self, step: str, run: Sequence[ReceivedRequest] = (), said: str = "") -> None:
        """Add a row: what the provider counted, and what every surface says of the latest conversation."""
        latest = self.last_conversation()
        self._add_row(step, latest, run, said)
        for conversation in dict.fromkeys(map(conversation_of, self.received())):
            if conversation.agent and conversation.id == latest.id:
                self._add_row(f"{step}, the subagent", conversation)

    def _add_row(
        self, step: str, conversation: Conversation, run: Sequence[ReceivedRequest] = (), said: str = ""
    ) -> None:
        view = self._view(conversation)
        address = ("--session", view["session_id"]) if conversation.agent else ()
        cells = self._compare(step, self.received(conversation), view, address)
        if not conversation.agent:
            cells["statusline"] = self._statusline(step, conversation.id, view)
        if said:
            cells["last line"] = self._last_line(step, run, said)
        self.rows.append(Row(step, cells))

    def _compare(
        self, step: str, requests: Sequence[ReceivedRequest], view: Any, address: Sequence[str] = ()
    ) -> dict[str, str]:
        """What each surface says of a conversation beside what the provider received; what is not equal is noted."""
        # A fork goes on with the folds of its parent. What they leave out of it is a figure of its own.
        received, inherited = read_figures(requests), read_folds(requests[:1])
        store = ("--store", str(self.daemon.store), "--json", *address)
        status, listed, savings, report = (
            json.loads(self._context("fold", name, *store).out) for name in ("status", "list", "savings", "report")
        )
        dropped_before = sum(each["tokens_dropped"] for each in savings["folds"] if each["branch_id"] in inherited)
        if dropped_before != status["folded_before_tokens"]:
            self.wrong.append(
                f"{step}: {dropped_before} and {status['folded_before_tokens']} tokens of its parent's folds"
            )
        shown = {
            "`status`": row_figures(status),
            "`list`": row_figures(listed["session"])._replace(
                folded=sum(branch["tokens_removed"] for branch in listed["branches"])
            ),
            "`savings`": Figures(
                received.prompt,
                savings["tokens_sent"],
                sum(fold["tokens_dropped"] for fold in savings["folds"] if fold["branch_id"] not in inherited),
                savings["left_out"]["tokens"],
            ),
            "`report`": row_figures(report["session"]),
            "page": row_figures(view),
        }
        if not address:
            shown["MCP"] = self._mcp_figures(received, view)
        cells = {"the provider received": str(received)}
        for name, figures in shown.items():
            cells[name] = "the same" if figures == received else f"**{figures}**"
            if figures != received:
                self.wrong.append(f"{step}: {name} says {figures}, and the provider received {received}")
        return cells

    def _mcp_figures(self, received: Figures, view: Any) -> Figures:
        """What the tools and the header say; a call that nothing identifies is about the latest conversation."""
        with HttpAgent(self.daemon.port) as agent:
            status = agent.call("context_branch_status", project_path=str(self.project))
            state = agent.state
        figures = status["token_breakdown"]
        same = status["session_id"], figures["total"], figures["folded_total"]
        assert same == (state["session_id"], state["total_tokens"], state["folded_tokens"])
        assert status["session_id"] == view["session_id"]
        folded = figures["folded_total"] - view["folded_before_tokens"]
        return received._replace(prompt=figures["total"] + view["host_tokens"], folded=folded)

    def check_advice(self) -> None:
        """Advice is never in a conversation's first request, nor in one whose conversation is short."""
        for conversation in dict.fromkeys(map(conversation_of, self.received())):
            requests = [each for each in self.received(conversation) if not is_title(each)]
            for number, request in enumerate(requests):
                if ADVICE.search(str(request.raw, "utf-8")) and (not number or tokens(request) < ADVISED_FROM_TOKENS):
                    self.wrong.append(f"advice in request {number} of {conversation}, of {tokens(request):,} tokens")

    def _last_line(self, step: str, run: Sequence[ReceivedRequest], said: str) -> str:
        line = next(line for line in said.splitlines() if " sent " in line).removeprefix("note: ")
        expected = f"{format_count(len(run), 'request')} sent {sum(map(tokens, run)):,} tokens;"
        if not line.startswith(expected):
            self.wrong.append(f"{step}: the last line says {line!r} instead of {expected!r}")
        return line

    def _view(self, conversation: Conversation) -> Any:
        """The session's row as the page gets it."""
        with Http(self.daemon.port) as client:
            rows = client.ask("GET", "/v1/sessions?limit=100").json["sessions"]
        (row,) = [row for row in rows if (row["conversation"], row["agent"] or "") == conversation]
        return row

    def _context(self, *words: str, stdin: bytes = b"") -> Ran:
        ran = run_command(*words, env={**self.env}, cwd=self.project, stdin=stdin)
        assert ran.code == 0, (words, ran.err)
        return ran

    def _statusline(self, step: str, conversation_id: str, view: Any) -> str:
        """What the status line says; it must have the figures of the page."""
        payload = {"session_id": conversation_id, "cwd": str(self.project)}
        line = BUSY
        for _ in range(STATUSLINE_TRIES):
            if line == BUSY:
                ran = self._context("statusline", "--url", self.daemon.url, stdin=json.dumps(payload).encode())
                line = ran.out.decode().strip().removeprefix("contextfold: ")
        figures = (view["folded_tokens"], "folded"), (view["left_out_tokens"], "left out")
        expected = [f"{abbreviate(view['total_tokens'])} tokens ({view['usage_percent']}%)"]
        expected += [f"{abbreviate(tokens)} {word}" for tokens, word in figures if tokens]
        if not line.startswith(" · ".join(expected)):
            self.wrong.append(f"{step}: the status line says {line!r} instead of {expected}")
        return line


def conversation_of(request: ReceivedRequest) -> Conversation:
    headers = request.headers
    if own := headers.get("x-session-id", ""):
        parent = headers.get("x-parent-session-id", "")
        return Conversation(parent or own, own if parent else "")
    return Conversation(headers.get("x-claude-code-session-id", ""), headers.get("x-claude-code-agent-id", ""))


def read_figures(requests: Sequence[ReceivedRequest]) -> Figures:
    """A conversation's figures, from nothing but what the provider received.

    The folds are in the answers of the tool, and the left-out results in the stubs, that later requests contain.
    """
    # A request without tools, such as one for a title, is beside the conversation.
    prompt = tokens(next(each for each in reversed(requests) if not is_title(each)))
    texts = [str(each.raw, "utf-8") for each in requests]
    folds = read_folds(requests[1:]).items() - read_folds(requests[:1]).items()
    stubs = {result: int(size.replace(",", "")) for text in texts for size, result in STUB.findall(text)}
    return Figures(prompt, sum(map(tokens, requests)), sum(size for _, size in folds), sum(stubs.values()))


def read_folds(requests: Sequence[ReceivedRequest]) -> dict[str, int]:
    texts = [str(each.raw, "utf-8") for each in requests]
    return {fold: int(size) for text in texts for fold, size in FOLD.findall(text)}


def row_figures(row: Mapping[str, Any]) -> Figures:
    sent = row["savings"]["tokens_sent"] if row["savings"] else 0
    return Figures(
        row["context_tokens"], sent, row["folded_tokens"] - row["folded_before_tokens"], row["left_out_tokens"]
    )


def is_title(request: ReceivedRequest) -> bool:
    return not is_conversation(request.body)


def is_main(request: ReceivedRequest) -> bool:
    return not is_title(request) and not conversation_of(request).agent


def tokens(request: ReceivedRequest) -> int:
    assert request.billed
    return request.billed.prompt


def run_day(host: Host, folder: Path) -> tuple[list[Row], list[str]]:
    day = TruthDay(host, folder)
    try:
        day.model.will("read alpha", "Alpha is fine.")
        day.run("`-p`, reading", "-p", "Look at alpha.")
        day.model.will("read beta", "read delta", "fold Beta and delta are fine.", "read epsilon", "All are fine.")
        day.run("`-p`, with a fold", "-p", "Look at beta.")
        tools = {tool["name"] for tool in day.received()[-1].body.get("tools", ())} or {"Task"}
        day.delegate("Agent" if "Agent" in tools else "Task")
        day.model.will("read alpha", "Gamma is fine, and so is alpha.")
        day.run("`-p`, with a subagent", "-p", "Ask somebody about gamma.")
        begins = len(day.received())
        argv = [str(COMMAND), "run", "--url", day.daemon.url, day.program.name, *CLAUDE_OPTIONS]
        terminal = Terminal(argv, day.env, day.project)
        try:
            terminal.wait_until(lambda: terminal.shows("❯"))

            def ask(text: str, answer: str, *steps: str) -> None:
                day.model.will(*steps, answer)
                terminal.type(text)
                terminal.wait_until(lambda: terminal.shows(answer))

            names = ("zeta", "eta", "theta", "iota", "kappa")
            ask("Look at the files.", "They are fine.", *(f"read {name}" for name in names))
            day.compare("terminal, reading")
            ask("Look at lambda.", "Lambda is fine.", "read lambda", "read mu", "fold Lambda and mu are fine.")
            day.compare("terminal, a fold")
            day.daemon.advance_clock(PAUSE_S)
            ask("I am back.", "Welcome back.")
            day.compare("terminal, after a pause")
            ask("And nu?", "Nu is fine.", "read nu")
            count = len(day.received())
            terminal.type("/compact")
            terminal.wait_until(lambda: len(day.received()) > count and terminal.shows("ompacted"))
            ask("Go on.", "Going on.", "read xi")
            day.compare("terminal, after a compaction")
            terminal.type("/clear")
            ask("Something else.", "Omicron is fine.", "read omicron")
            said = terminal.end()
            day.compare("terminal, after `/clear`", day.received()[begins:], said)
        finally:
            (folder / "terminal.txt").write_text(terminal.text)
        day.model.will("read pi", "Pi is fine.")
        day.run("`--continue -p`", "--continue", "-p", "Look at pi, too.")
        _run_changes(day)
        day.check_advice()
    finally:
        day.close()
    return day.rows, day.wrong


def _run_changes(day: TruthDay) -> None:
    """A file that is edited and read again, a refusal with words, another model and a fork."""
    # Otherwise it asks for no title.
    day.env.pop("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC")
    titles, rho = sum(map(is_title, day.received())), day.project / "rho.txt"
    edit = {"file_path": str(rho), "old_string": "rho line 0 of", "new_string": "rho line zero of"}
    argv = [str(COMMAND), "run", "--url", day.daemon.url, day.program.name, *CLAUDE_OPTIONS]
    terminal = Terminal(argv, day.env, day.project)
    terminal.wait_until(lambda: terminal.shows("❯"))
    day.model.will("read rho")
    day.model.will_say(Say("", (Call("call_edit", "Edit", edit),)))
    day.model.will_say(Say("", (day.host.read("call_again", str(rho)),)))
    day.model.will(*(f"read {name}" for name in ("sigma", "tau", "upsilon")), "Rho is changed.")
    terminal.type("Change rho.")
    terminal.wait_until(lambda: terminal.shows("Rho is changed."))
    day.compare("another terminal, a title, an edited file read again")
    if sum(map(is_title, day.received())) == titles:
        day.wrong.append("no title was asked for")
    day.model.will_say(Say("", (Call("call_prod", "Bash", {"command": "touch prod"}),)))
    day.model.will("read phi", "fold Phi is fine.", "Prod is as it was.")
    terminal.type("Look at phi.")
    terminal.wait_until(lambda: terminal.shows("want to proceed?"))
    terminal.press(*REFUSES)
    terminal.wait_until(lambda: terminal.shows("Prod is as it was."))
    terminal.end()
    day.compare("a refusal with words, and a fold around it")
    day.model.will("The same.")
    day.run("`--continue -p`, another model", "--continue", "-p", "And now?", options=OTHER_MODEL)
    words = ("--resume", day.last_conversation().id, "--fork-session", "-p", "What else?")
    day.model.will("Nothing else.", "Nothing.")
    day.run("a fork of it", *words, options=OTHER_MODEL)
    last = str(next(each for each in reversed(day.received()) if is_main(each)).raw, "utf-8")
    if REFUSAL not in last or "phi line 300" in last or "rho line zero of" not in last or not STUB.search(last):
        day.wrong.append(
            "the fork has not the user's words, or has what was folded, or no line in the place of results"
        )


def run_other_day(host: Host, folder: Path) -> tuple[list[Row], list[str]]:
    """A day of another program, which has no terminal here."""
    day = TruthDay(host, folder)

    def words(given: Sequence[str], prompt: str) -> list[str]:
        return [prompt if word == "PROMPT" else word for word in given]

    try:
        day.model.will("read alpha", "read beta", "fold Alpha and beta are fine.", "read gamma", "All are fine.")
        day.run_other("a run, with a fold", words(host.first, "Look at alpha."))
        # Stored times are whole seconds: two runs in one second are both the latest.
        ended_at = int(time.time())
        until(lambda: int(time.time()) > ended_at)
        names = ("delta", "epsilon", "zeta", "eta", "theta")
        day.model.will(*(f"read {name}" for name in names), "They are fine.")
        before = day.run_other("another run, reading", words(host.first, "Look at delta."))
        day.daemon.advance_clock(PAUSE_S)
        day.model.will("read iota", "Iota is fine.")
        day.run_other("it goes on after a pause", words(host.later, "And iota?"), before)
    finally:
        day.close()
    return day.rows, day.wrong


def main() -> int:
    wanted = sys.argv[1:] or list(HOST_PROGRAMS)
    hosts = [host for host in HOSTS if host.folder in wanted and host.folder in HOST_PROGRAMS]
    if not hosts:
        print(NO_CLAUDE, file=sys.stderr)
        return 1
    failed = 0
    for host in hosts:
        with day_folder() as folder:
            try:
                is_claude = host.folder.startswith("claude-")
                rows, wrong = (run_day if is_claude else run_other_day)(host, folder)
            except (AssertionError, subprocess.SubprocessError, StopIteration) as problem:
                failed += 1
                traceback.print_exception(problem)
                continue
        names = list(dict.fromkeys(name for row in rows for name in row.cells))
        print(f"\n{host.title} ({host.folder}), tokens: last prompt / all prompts / folded / left out\n")
        print("| step | " + " | ".join(names) + " |\n" + "|---" * (len(names) + 1) + "|")
        for row in rows:
            print("| " + " | ".join([row.step, *(row.cells.get(name, "") for name in names)]) + " |")
        print("\n" + "\n".join(f"WRONG {line}" for line in wrong) if wrong else "\nAll equal.")
        failed += bool(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
