"""Requests of agent programs, recorded by `make hosts` and replayed through a daemon.

What is stored has the shape of what the program sent, but not its maker's words: every text that the day did not write
itself is replaced by filler of the same length, the same for the same text, so that what was equal stays equal.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import lzma
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.upstream import APIS, RULES

FOLDER = Path(__file__).parent / "recorded" / "requests"
HOME = "/home/user"
TIMEOUT_S = 180
RUN = "run_0123456789abcdef"
# A line of a file that the day wrote, whatever the program puts in front of it.
FILE_LINE = re.compile(r"[\s\d:|→]*\w+ line \d+ of a long file")
# The markup in which programs put their own texts, and which the proxy knows.
TAG = re.compile(
    r"(</?(?:system-reminder|environment_context|session_context|untrusted_context|tool_output_masked|path|content)>)"
)
PATH = re.compile(r"(?<!\S)/[^\s<>\"']+")
# Members whose values are names, and those of calls, whose values the day wrote.
NAMES = frozenset(
    {
        *("type", "role", "name", "id", "call_id", "tool_use_id", "model", "status", "signature", "thoughtSignature"),
        *("namespace", "ttl", "prompt_cache_key", "required", "enum", "$schema", "effort", "verbosity", "tool_choice"),
    }
)
ARGUMENTS = frozenset(("cmd", "file_path", "filePath", "message", "input"))
NAME_LENGTH_MAX = 100
# The headers that decide what the proxy does. Others say who the user is.
HEADERS = re.compile(r"content-type|anthropic-.*|x-claude-code-.*", re.IGNORECASE)
KEYS = {"x-api-key": "sk-local", "x-goog-api-key": "local", "authorization": "Bearer sk-local"}


class RecordedRequest(NamedTuple):
    path: str
    headers: Mapping[str, str]
    body: bytes
    # Whether the pause was before this request.
    is_after_pause: bool = False

    @property
    def api(self) -> str:
        """The API, or an empty text for a path that is not folded."""
        name = self.path.partition("?")[0]
        ends = (api for end, api in APIS.items() if name.endswith(end))
        return "gemini" if "enerateContent" in name else next(ends, "")

    @property
    def violations(self) -> list[str]:
        """The rules that the request breaks already as the program makes it."""
        return RULES[self.api](json.loads(self.body)) if self.api else []


class Replayed(NamedTuple):
    request: RecordedRequest
    status: int
    receipt: Mapping[str, Any]


def replay(requests: Sequence[RecordedRequest], port: int) -> Iterator[Replayed]:
    """Send requests through the proxy of a daemon, one after another."""
    for request in requests:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        connection.request("POST", f"/run/{RUN}{request.path}", request.body, dict(request.headers))
        response = connection.getresponse()
        response.read()
        connection.close()
        yield Replayed(request, response.status, json.loads(response.headers.get("x-context-fold", "{}")))


def load(path: Path) -> list[RecordedRequest]:
    listed = json.loads(lzma.decompress(path.read_bytes()))
    return [
        RecordedRequest(each["path"], each["headers"], json.dumps(each["body"]).encode(), each["is_after_pause"])
        for each in listed
    ]


def save(path: Path, requests: Sequence[RecordedRequest], *, home: Path, own_texts: Collection[str]) -> None:
    """Store requests. `own_texts` are what the day's user and model said, `home` is the folder that they saw."""
    listed = []
    for request in requests:
        body = json.loads(request.body.replace(str(home).encode(), HOME.encode()))
        listed.append(
            {
                "path": request.path,
                "headers": {name: value for name, value in request.headers.items() if HEADERS.fullmatch(name)} | KEYS,
                "is_after_pause": request.is_after_pause,
                "body": _sanitise(body, "", own_texts),
            }
        )
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(lzma.compress(json.dumps(listed).encode(), preset=9 | lzma.PRESET_EXTREME))


def _sanitise(value: Any, name: str, own_texts: Collection[str]) -> Any:
    if isinstance(value, dict):
        return {key: _sanitise(member, key, own_texts) for key, member in value.items()}
    if isinstance(value, list):
        return [_sanitise(member, name, own_texts) for member in value]
    if not isinstance(value, str):
        return value
    is_name = name in NAMES and len(value) <= NAME_LENGTH_MAX and " " not in value
    is_argument = name in ARGUMENTS and (HOME in value or "context_fold" in value)
    if is_name or is_argument or value in own_texts:
        return value
    try:
        inner = json.loads(value)
    except ValueError:
        inner = None
    if isinstance(inner, dict):
        # The arguments of a call, or a result of our tools.
        return value if "branch_id" in value else json.dumps(_sanitise(inner, name, own_texts))
    return "\n".join(_fill_line(line, own_texts) for line in value.split("\n"))


def _fill_line(line: str, own_texts: Collection[str]) -> str:
    if FILE_LINE.fullmatch(line) or line.strip(' "') in own_texts or '"branch_id' in line or '\\"branch_id' in line:
        return line
    return "".join(part if TAG.fullmatch(part) else _fill_text(part) for part in TAG.split(line))


def _fill_text(text: str) -> str:
    """Filler of the same length, with the paths of the day in their places."""
    filled, at = "", 0
    for found in PATH.finditer(text):
        if found[0].startswith(HOME):
            filled += _filler(text[at : found.start()]) + found[0]
            at = found.end()
    return filled + _filler(text[at:])


def _filler(text: str) -> str:
    if not text.strip():
        return text
    length = len(text.encode())
    word = hashlib.sha256(text.encode()).hexdigest()[:7] + " "
    return (word * (length // len(word) + 1))[: length - 1] + (" " if text[-1].isspace() else ".")
