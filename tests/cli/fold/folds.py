"""Helpers for the tests of `context fold`: an agent that fills a store, and the command on a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from contextfold.fold.project import Caller, Conversation, conversation_target, project_at, target_of
from contextfold.fold.sent_request import RequestReport
from contextfold.fold.service.fold_service import FoldService
from contextfold.scrub.scrubber import Scrubber, standard_scrubber
from contextfold.stores.sqlite.store import SqliteStore
from tests.support.machine import COMMAND

Result = TypeVar("Result")
PROJECT = "/work/app"
# Apart from text, only colours and font weights may reach a terminal.
SGR = re.compile(r"\x1b\[[0-9;]*m")


class StoreAgent:
    """An agent that works on a project and writes to a store's file."""

    def __init__(
        self,
        store: Path,
        project: str = PROJECT,
        *,
        owner: str = "local",
        session: str | None = None,
        conversation: Conversation | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        scrubber: Scrubber | None = None,
    ) -> None:
        self._store = store
        self._caller = Caller(owner, session)
        if conversation:
            target = conversation_target(owner, conversation, project_at(project), conversation.agent or None)
            self._caller = self._caller._replace(session=target)
        self._project = project
        self._clock = clock
        self._scrubber = scrubber or standard_scrubber()

    def branch(self, description: str, prompt: str = "Look into it.") -> str:
        request = self._with(description=description, prompt=prompt)
        return str(self._answer(lambda service: service.open_branch(self._caller, request))["branch_id"])

    def record(self, kind: str, content: str = "", *, failed: bool = False, tokens: int | None = None) -> None:
        request = self._with(type=kind, content=content, failed=failed, tokens=tokens)
        self._answer(lambda service: service.record(self._caller, request, "hook"))

    def fold(self, message: str) -> None:
        request = self._with(message=message)
        self._answer(lambda service: service.return_branch(self._caller, request))

    def rollback(self, branch_id: str) -> None:
        request = self._with(branch_id=branch_id)
        self._answer(lambda service: service.roll_back(self._caller, request))

    def sent(self, sent: RequestReport) -> None:
        """Records a request to a model, as the proxy does."""
        target = target_of(self._caller, project_at(self._project))

        async def record_sent(service: FoldService) -> None:
            service.reports.receive(target, sent)
            await service.reports.settle(target.key)

        self._run(record_sent)

    def end_idle(self) -> None:
        self._run(lambda service: service.end_idle())

    def _with(self, **arguments: object) -> Mapping[str, object]:
        return {"project_path": self._project, **arguments}

    def _answer(self, work: Callable[[FoldService], Awaitable[Any]]) -> Any:
        return self._run(work).answer

    def _run(self, work: Callable[[FoldService], Awaitable[Result]]) -> Result:
        async def run() -> Result:
            opened = SqliteStore(self._store)
            try:
                return await work(FoldService(opened, self._scrubber, clock=self._clock))
            finally:
                await opened.close()

        return asyncio.run(run())


class Terminal:
    """The command, run on a pseudo-terminal."""

    def __init__(self, *argv: object, columns: int = 80, env: Mapping[str, str] | None = None) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        unset = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "COLORTERM")
        environment = {name: value for name, value in os.environ.items() if name not in unset}
        environment = {**environment, "TERM": "xterm-256color", **(env or {})}
        # The terminal controls the process, so Ctrl-C is a signal there.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", COMMAND, *map(str, argv)], stdin=slave, stdout=slave, stderr=slave, env=environment
        )
        os.close(slave)
        self._output = b""

    def until(self, text: str) -> str:
        """Reads until the command has written this text; returns everything it has written so far."""
        while text.encode() not in self._output:
            assert self._read(), f"the command ended without writing {text!r}: {self._output!r}"
        return self._output.decode()

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def finish(self) -> tuple[int, str]:
        """Reads to the end; returns the exit code and everything the command has written."""
        while self._read():
            pass
        code = self.process.wait(timeout=60)
        os.close(self._master)
        return code, self._output.decode().replace("\r\n", "\n")

    def _read(self) -> bool:
        try:
            chunk = os.read(self._master, 65_536)
        except OSError:
            # A terminal that no process has open any more reports its end with this error.
            return False
        self._output += chunk
        return bool(chunk)


def on_terminal(*argv: object, columns: int = 80, env: Mapping[str, str] | None = None) -> str:
    """Runs a command on a terminal and returns its output; the command must succeed."""
    code, output = Terminal(*argv, columns=columns, env=env).finish()
    assert code == 0, output
    return output


def without_colours(output: str) -> str:
    return SGR.sub("", output)
