"""The log: JSON lines, without texts of other packages, and never blocking."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from contextfold.serve.ops.logs import LINE_MAX_BYTES, VALUE_MAX_CHARS, log
from tests.support.machine import SOURCE

WAIT_S = 60


def lines(text: str | bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def run(
    program: str, *, stderr: int = subprocess.PIPE, inherited: int | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Runs a program that may log; `inherited` is a descriptor that it gets."""
    return subprocess.run(
        [sys.executable, "-c", "from contextfold.serve.ops.logs import log, take_over\n" + program],
        env={"PYTHONPATH": str(SOURCE), "PATH": os.environ["PATH"], "HOME": os.environ["HOME"]},
        stdout=subprocess.PIPE,
        stderr=stderr,
        pass_fds=() if inherited is None else (inherited,),
        timeout=WAIT_S,
        check=True,
    )


def test_a_line_is_an_object_with_time_level_event_and_fields(capfd: pytest.CaptureFixture[str]) -> None:
    log("daemon.listening", url="http://127.0.0.1:9090", tries=1, wide=False, ms=0.5, owner=None)
    (line,) = lines(capfd.readouterr().err)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("at"))
    assert line == {
        "level": "info",
        "event": "daemon.listening",
        "url": "http://127.0.0.1:9090",
        "tries": 1,
        "wide": False,
        "ms": 0.5,
        "owner": None,
    }


def test_a_value_cannot_forge_a_line_or_a_field(capfd: pytest.CaptureFixture[str]) -> None:
    log("event", "warning", text='a\n{"event":"forged"}\x1b[2J\u2028', at="never")
    (line,) = lines(capfd.readouterr().err)
    assert line["text"] == 'a\n{"event":"forged"}\x1b[2J\u2028'
    assert line["at"] != "never"


def test_values_and_lines_are_bounded(capfd: pytest.CaptureFixture[str]) -> None:
    log("long", text="x" * 10_000)
    fields: dict[str, Any] = {f"field{number}": "\u2028" * 10_000 for number in range(100)}
    log("wide", **fields)
    log("odd", value=object())  # type: ignore[arg-type]
    output = capfd.readouterr().err
    long, wide, odd = lines(output)
    assert len(long["text"]) == VALUE_MAX_CHARS
    assert wide["cut"] is True
    assert odd["value"] == "object"
    assert all(len(line) < LINE_MAX_BYTES for line in output.splitlines())


def test_log_records_of_libraries_are_logged_without_their_text() -> None:
    result = run(
        """
import asyncio, logging, threading, warnings
take_over()
logging.getLogger("mcp.server").error("hush %s", "hush", extra={"hush": "hush"})
logging.getLogger("mcp.server").info("not worth a line")
try:
    raise ValueError("hush")
except ValueError:
    logging.getLogger("uvicorn.error").exception("hush")
logging.getLogger("odd").error("%d hush", "hush")
warnings.warn("hush")
threading.Thread(target=lambda: [].index("hush")).start()
class Careless:
    def __del__(self):
        raise KeyError("hush")
Careless()
async def main():
    async def fail():
        raise OSError("hush")
    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
asyncio.run(main())
log("last")
"""
    )
    assert b"hush" not in result.stderr
    logged = lines(result.stderr)
    assert [(line["event"], line.get("logger"), line.get("exception")) for line in logged] == [
        ("library", "mcp.server", None),
        ("library", "uvicorn.error", "ValueError"),
        ("library", "odd", None),
        ("library", "py.warnings", None),
        ("uncaught", None, "ValueError"),
        ("uncaught", None, "KeyError"),
        ("library", "asyncio", "OSError"),
        ("last", None, None),
    ]
    assert re.fullmatch(r"<string>:\d+", logged[1]["raised_at"])
    assert result.stdout == b""


def test_lines_that_a_full_stderr_loses_are_counted() -> None:
    read_end, write_end = os.pipe()
    try:
        run(
            """
import os
for number in range(5000):
    log("line", number=number)
os.read(READING, 1 << 20)
log("line", number=-1)
""".replace("READING", str(read_end)),
            stderr=write_end,
            inherited=read_end,
        )
        os.close(write_end)
        write_end = -1
        rest = lines(os.read(read_end, 1 << 20))
        assert [line["event"] for line in rest] == ["log.lost", "line"]
        assert rest[0]["lines"] > 1000
        assert rest[1]["number"] == -1
    finally:
        os.close(read_end)
        if write_end >= 0:
            os.close(write_end)


def test_a_stderr_without_a_reader_stops_nothing() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        assert run("log('line'); print('on')", stderr=write_end).stdout == b"on\n"
    finally:
        os.close(write_end)


def test_a_closed_stderr_is_not_confused_with_the_next_descriptor() -> None:
    program = """
import os, socket
take_over()
ours, theirs = socket.socketpair()
log("line")
theirs.setblocking(False)
ours.setblocking(False)
for end in (ours, theirs):
    try:
        print(end.recv(100))
    except BlockingIOError:
        os.write(1, b"nothing came\\n")
"""
    shell = f'exec {sys.executable} -c "$PROGRAM" 2>&-'
    result = subprocess.run(
        ["bash", "-c", shell],
        env={
            "PYTHONPATH": str(SOURCE),
            "PATH": os.environ["PATH"],
            "HOME": os.environ["HOME"],
            "PROGRAM": "from contextfold.serve.ops.logs import log, take_over\n" + program,
        },
        stdout=subprocess.PIPE,
        timeout=WAIT_S,
        check=True,
    )
    assert result.stdout == b"nothing came\n" * 2
