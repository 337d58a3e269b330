"""Converts a tool's structured response to the text that the model reads. Knows the shapes of responses, no hosts.

A hook receives more than the model sees: whole files before and after an edit, patches, base64, output that was cut
off. The shapes are those of Claude Code 2.1.325, whose requests to the model were recorded together with its hooks
(`tests/hosts`). Shorter texts replace its fixed sentences. So a call is counted with fewer tokens than the model
reads: about 25 fewer for an edit, 60 for a command in the background, 140 to 230 for a subagent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from contextfold.errors import ArgumentInvalid

Response = Mapping[str, object]

# If a long output was written into a file, the model reads this many characters of it.
PREVIEW_LENGTH = 2_000
LINE_NUMBER_MAX = 1 << 53
BINARY_BLOCKS = frozenset({"image", "audio", "video", "document"})
BINARY_MEMBERS = frozenset({"base64", "blob"})


def compact(value: object) -> str:
    """Encode a value as JSON, without binary data."""
    try:
        return json.dumps(_drop_bytes(value), ensure_ascii=False, separators=(",", ":"))
    except (RecursionError, ValueError):
        # The value is nested too deeply, or has a number of thousands of digits.
        raise ArgumentInvalid("payload", "must hold no JSON too deep or too long to be written") from None


def text_of(response: object) -> str:
    if isinstance(response, Mapping):
        for members, read in _SHAPES:
            if members <= response.keys():
                return read(response)
    return _plain(response)


def _plain(value: object) -> str:
    """The text of a value that has no known shape. It does not recurse, so deep nesting costs no extra time."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return _blocks(value)
    return "" if value is None else compact(value)


def _drop_bytes(value: object) -> object:
    if isinstance(value, Mapping):
        encoded = BINARY_MEMBERS | {"data"} if value.get("type") == "base64" else BINARY_MEMBERS
        return {name: _drop_bytes(member) for name, member in value.items() if name not in encoded}
    if isinstance(value, list):
        return [_drop_bytes(member) for member in value]
    return value


def _text(response: Response, name: str) -> str:
    value = response.get(name)
    return value if isinstance(value, str) else ""


def _join(*texts: str) -> str:
    return "\n".join(text for text in texts if text)


def _blocks(blocks: list[object]) -> str:
    """The text of content blocks of the Messages API or MCP. Any other list is encoded as JSON."""
    if not all(isinstance(block, Mapping) and isinstance(block.get("type"), str) for block in blocks):
        return compact(blocks)
    return _join(*(_block(block) for block in _mappings(blocks)))


def _block(block: Response) -> str:
    kind = block.get("type")
    if kind == "text":
        return _text(block, "text")
    if kind == "resource":
        resource = block.get("resource")
        return _text(resource, "text") if isinstance(resource, Mapping) else ""
    return "" if kind in BINARY_BLOCKS else compact(block)


def _read(response: Response) -> str:
    file = response["file"]
    if not isinstance(file, Mapping):
        return ""
    if response.get("type") == "notebook":
        return _join(*(_cell(cell) for cell in _mappings(file.get("cells"))))
    content = _text(file, "content")
    return _number_lines(content, file.get("startLine")) if content else _text(file, "filePath")


def _number_lines(content: str, first: object) -> str:
    start = first if isinstance(first, int) and 0 <= first <= LINE_NUMBER_MAX else 1
    return "\n".join(f"{number}\t{line}" for number, line in enumerate(content.split("\n"), start))


def _mappings(value: object) -> list[Response]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _cell(cell: Response) -> str:
    printed = (_text(output, "text") for output in _mappings(cell.get("outputs")))
    return _join(f'<cell id="{_text(cell, "cell_id")}">', _text(cell, "source"), *printed)


def _shell(response: Response) -> str:
    stdout = "" if response.get("isImage") is True else _text(response, "stdout")
    output_file = _text(response, "persistedOutputPath")
    if output_file:
        stdout = f"too long, kept in {output_file}; it begins:\n{stdout[:PREVIEW_LENGTH]}"
    task = _text(response, "backgroundTaskId")
    running = f"runs in the background as {task}" if task else ""
    return _join(stdout, _text(response, "stderr").strip("\n"), running) or "no output"


def _describe_edit(response: Response) -> str:
    return f"{'created' if response.get('type') == 'create' else 'updated'} {_text(response, 'filePath')}"


def _search_result(response: Response) -> str:
    limited = "only the first are shown" if "appliedLimit" in response or response.get("truncated") is True else ""
    listed = response.get("filenames")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    return _join(_text(response, "content"), *names, limited) or "nothing found"


def _agent(response: Response) -> str:
    content = _plain(response.get("content"))
    return _join(content, f"{_text(response, 'status')} {_text(response, 'agentId')}", _text(response, "outputFile"))


def _content(response: Response) -> str:
    return _plain(response["content"]) or _plain(response.get("structuredContent"))


# The first shape whose members are all present is used. A response without a known shape is encoded as JSON.
_SHAPES: tuple[tuple[frozenset[str], Callable[[Response], str]], ...] = (
    (frozenset({"type", "file"}), _read),
    (frozenset({"stdout"}), _shell),
    (frozenset({"filePath", "structuredPatch"}), _describe_edit),
    (frozenset({"filePath", "originalFile"}), _describe_edit),
    (
        frozenset({"notebook_path", "new_source"}),
        lambda response: f"updated cell {_text(response, 'cell_id')} with {_text(response, 'new_source')}",
    ),
    (frozenset({"filenames"}), _search_result),
    (frozenset({"oldTodos", "newTodos"}), lambda _: "todos updated"),
    (frozenset({"url", "result"}), lambda response: _plain(response["result"])),
    (frozenset({"query", "results"}), lambda response: compact(response["results"])),
    (frozenset({"status", "agentId"}), _agent),
    (frozenset({"content"}), _content),
)
