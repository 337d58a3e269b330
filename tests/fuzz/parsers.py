"""The parsers of input from outside, each as a function of bytes that must not fail, and the inputs to try.

An input may be refused with one of the errors in `REFUSALS`. Any other exception, and any output that breaks the rule
of its parser, is a bug. The first byte of an input chooses between the forms that a parser has.

`corpus.json.xz` has inputs by parser, found with atheris, a fuzzer that looks for inputs which reach new code. The
tests try all of them. `make soak` adds to them:

    python -m tests.fuzz.parsers SECONDS [PARSER …]
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import lzma
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from contextfold.cli.commands import parse_command_line
from contextfold.cli.parser import UsageError, parse_budget
from contextfold.common.canonical import Malformed, is_too_deep
from contextfold.errors import ContextError, SettingsError
from contextfold.fold.messages.apis import Format
from contextfold.fold.messages.request import project_body
from contextfold.fold.store_export import read_export
from contextfold.resolve.cache_format import decode_document, decode_index, decode_manifest
from contextfold.resolve.conversion import NotText, text_of
from contextfold.resolve.relevance.sections import outline
from contextfold.resolve.rules import parse_ignore_file
from contextfold.scrub.rules import AllowlistInvalid, parse_allowlist
from contextfold.scrub.scrubber import standard_scrubber
from contextfold.serve.hooks import READERS
from contextfold.serve.http.bearer_tokens import parse_tokens
from contextfold.serve.mcp.protocol import McpServer, encode_error, parse_request, tools_of
from contextfold.serve.proxy.response_reader import ResponseReader
from contextfold.serve.request_error import RequestError
from contextfold.settings import ALL_TOOLSETS, read_daemon_settings
from tests.fold.messages import rules_anthropic, rules_gemini, rules_openai_chat, rules_openai_responses

CORPUS = Path(__file__).with_name("corpus.json.xz")
REFUSALS = (ContextError, Malformed, RequestError, SettingsError, UsageError, NotText, AllowlistInvalid)
INPUT_MAX_BYTES = 8192
# A parser takes longer than this only if something is wrong with it. Tracing makes it slower.
SLOW_S = 5.0
HANGS_AFTER_S = 60
FORMATS: tuple[Format, ...] = ("anthropic", "openai-chat", "openai-responses", "gemini")
# The rules of each provider for the messages of a request.
VIOLATIONS = (
    rules_anthropic.violations,
    rules_openai_chat.violations,
    rules_openai_responses.violations,
    rules_gemini.violations,
)
EXTENSIONS = ("md", "rst", "adoc", "org", "txt", "py", "html", "js")
ENCODINGS = ("", "gzip", "deflate", "br", "x, gzip")
SERVER = McpServer(tools_of(ALL_TOOLSETS))


def choose(raw: bytes, *numbers: int) -> tuple[list[int], bytes]:
    """An index below each of the numbers, from the first byte, and the other bytes."""
    first = raw[0] if raw else 0
    indexes = []
    for number in numbers:
        first, index = divmod(first, number)
        indexes.append(index)
    return indexes, raw[1:]


def check_mcp(raw: bytes) -> None:
    try:
        answer = SERVER.answer(parse_request(raw))
    except RequestError as refusal:
        answer = encode_error(None, refusal)
    if isinstance(answer, bytes):
        assert json.loads(answer)["jsonrpc"] == "2.0"


def check_hook(raw: bytes) -> None:
    (host,), body = choose(raw, len(READERS))
    payload = None if is_too_deep(body) else json.loads(body.decode("utf-8", "replace"))
    if isinstance(payload, dict):
        event = list(READERS.values())[host].read(payload)
        event.event.encode()


def check_messages(raw: bytes) -> None:
    """A request that was valid is valid afterwards, with the other members as they were."""
    (number,), body = choose(raw, len(FORMATS))
    projection = project_body(body, FORMATS[number])
    projection.find_work()
    if projection.body is not body:
        before, after = json.loads(body), json.loads(projection.body)
        assert before.keys() == after.keys()
        try:
            was_valid = not VIOLATIONS[number](before)
        except (AttributeError, KeyError, TypeError, ValueError, IndexError):
            was_valid = False
        assert not was_valid or not VIOLATIONS[number](after)


def check_response(raw: bytes) -> None:
    """What is read does not depend on where the network divides the body."""
    (number, is_stream, encoding), body = choose(raw, len(FORMATS), 2, len(ENCODINGS))
    facts = []
    for size in (len(body) or 1, 7):
        content_type = "text/event-stream" if is_stream else "application/json"
        reader = ResponseReader(FORMATS[number], content_type, ENCODINGS[encoding], {"context_fold"})
        for at in range(0, len(body), size):
            reader.feed(body[at : at + size])
        facts.append(reader.facts())
    assert facts[0] == facts[1]


def check_cache_file(raw: bytes) -> None:
    (number,), body = choose(raw, 3)
    if number == 0:
        manifest = decode_manifest(body)
        list(manifest.contradictions())
        assert decode_manifest(manifest.to_json()).entries == manifest.entries
    else:
        (decode_document, decode_index)[number - 1](body)


def check_ignore_file(raw: bytes) -> None:
    """The first line is a path."""
    path, _, patterns = raw.partition(b"\n")
    parsed = parse_ignore_file(patterns, [b"docs"], file=".gitignore")
    components = [part for part in path.replace(b"\0", b"").split(b"/") if part] or [b"a"]
    parsed.match_file(components)
    parsed.match_folder(components)


def check_sections(raw: bytes) -> None:
    """The sections of a document follow each other without a gap."""
    (number,), body = choose(raw, len(EXTENSIONS))
    text = body.decode("utf-8", "replace")
    sections = outline(f"a.{EXTENSIONS[number]}", text).sections
    edges = [section.start for section in sections] + [len(text)]
    assert [section.end for section in sections] == edges[1:]
    assert not sections or sections[0].start == 0


def check_conversion(raw: bytes) -> None:
    (number,), body = choose(raw, 2)
    text_of((b"a.html", b"a.ipynb")[number], body).decode("utf-8")


def check_export(raw: bytes) -> None:
    list(read_export(io.BytesIO(raw)))


def check_settings(raw: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(raw)
        file.flush()
        read_daemon_settings({"HOME": "/nonexistent"}, {"config": file.name})


def check_command_line(raw: bytes) -> None:
    words = os.fsdecode(raw.replace(b"\0", b"")).split("\n")
    # A command prints its help when it is parsed.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.suppress(SystemExit):
        parse_command_line(words)
    parse_budget(words[0], 0)


def check_token_file(raw: bytes) -> None:
    parse_tokens(raw, "tokens")


def check_allowlist(raw: bytes) -> None:
    parse_allowlist(raw.decode("utf-8", "replace"))


def check_scrubbing(raw: bytes) -> None:
    """Nothing is left to redact in a scrubbed text."""
    text = standard_scrubber().scrub(raw.decode("utf-8", "replace")).text
    assert standard_scrubber().scrub(text) == (text, 0, ())


PARSERS: dict[str, Callable[[bytes], None]] = {
    "mcp": check_mcp,
    "hook": check_hook,
    "messages": check_messages,
    "response": check_response,
    "cache-file": check_cache_file,
    "ignore-file": check_ignore_file,
    "sections": check_sections,
    "conversion": check_conversion,
    "export": check_export,
    "settings": check_settings,
    "command-line": check_command_line,
    "token-file": check_token_file,
    "allowlist": check_allowlist,
    "scrubbing": check_scrubbing,
}


def try_input(parser: str, raw: bytes) -> None:
    """Give an input to a parser. It raises whatever is not a refusal."""
    began = time.process_time()
    with contextlib.suppress(*REFUSALS):
        try:
            PARSERS[parser](raw)
        except json.JSONDecodeError as problem:
            # Only `check_hook` decodes JSON that may be wrong; an output that is no JSON is a bug.
            if parser != "hook":
                raise AssertionError("the output is not JSON") from problem
    assert time.process_time() - began < SLOW_S


def read_corpus() -> dict[str, list[bytes]]:
    stored = json.loads(lzma.decompress(CORPUS.read_bytes()))
    return {parser: [text.encode("latin-1") for text in texts] for parser, texts in stored.items()}


def write_corpus(corpus: dict[str, Iterable[bytes]]) -> None:
    texts = {parser: sorted(raw.decode("latin-1") for raw in inputs) for parser, inputs in sorted(corpus.items())}
    CORPUS.write_bytes(lzma.compress(json.dumps(texts).encode(), preset=9 | lzma.PRESET_EXTREME))


# ---- growing the corpus

# Two lines, and the name of an exception.
Step = tuple[CodeType, int, int, str]


def lines_reached(parser: str, raw: bytes) -> set[Step]:
    """The pairs of lines of our code that an input runs one after the other, and the exceptions in them."""
    reached: set[Step] = set()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if "contextfold" not in code.co_filename:
            return None
        last = frame.f_lineno

        def trace_line(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            kind = argument[0].__name__ if event == "exception" else ""
            reached.add((code, last, frame.f_lineno, kind))
            last = frame.f_lineno
            return trace_line

        return trace_line

    sys.settrace(trace)
    try:
        try_input(parser, raw)
    finally:
        sys.settrace(None)
    return reached


def minimise(parser: str, inputs: Iterable[bytes]) -> tuple[list[bytes], int]:
    """The short inputs that reach something that no shorter one does, and the number of those that fail, which stay."""
    failed = 0
    kept: list[bytes] = []
    reached: set[Step] = set()
    for raw in sorted(set(inputs), key=lambda raw: (len(raw), raw)):
        try:
            found = lines_reached(parser, raw)
        except Exception as problem:
            print(f"{parser} fails for {raw!r}: {problem!r}", file=sys.stderr)
            kept.append(raw)
            failed += 1
            continue
        if found - reached:
            reached |= found
            kept.append(raw)
    return kept, failed


def mutate(inputs: list[bytes], seconds: float) -> Iterator[bytes]:
    """Inputs with bytes changed, left out, repeated, or taken from another one. The list may grow meanwhile."""
    rng = random.Random(time.time_ns())
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        raw = bytearray(rng.choice(inputs))
        for _ in range(rng.randint(1, 4)):
            at, length, other = rng.randrange(len(raw) + 1), rng.randrange(1, 16), rng.choice(inputs)
            start = rng.randrange(len(other) + 1)
            piece = rng.choice((b"", bytes([rng.randrange(256)]), other[start : start + length]))
            raw[at : at + rng.choice((0, len(piece), length))] = piece
        yield bytes(raw[:INPUT_MAX_BYTES])


def fuzz(parser: str, inputs: list[bytes], seconds: int) -> set[bytes]:
    """New inputs, found by atheris in a process of its own, or by chance where atheris is not installed."""
    program = f"""
import atheris, sys
with atheris.instrument_imports(include=["contextfold"]):
    from tests.fuzz.parsers import try_input
atheris.Setup(sys.argv, lambda raw: try_input({parser!r}, raw))
atheris.Fuzz()
"""
    with tempfile.TemporaryDirectory() as folder:
        for number, raw in enumerate(inputs):
            Path(folder, str(number)).write_bytes(raw)
        options = [f"-max_total_time={seconds}", f"-max_len={INPUT_MAX_BYTES}", f"-timeout={HANGS_AFTER_S}"]
        command = [sys.executable, "-c", program, folder, f"-artifact_prefix={folder}/", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if "No module named 'atheris'" not in done.stderr:
            return {path.read_bytes() for path in Path(folder).iterdir()}
    pool = list(inputs)
    seen = set(itertools.chain.from_iterable(lines_reached(parser, raw) for raw in inputs))
    for raw in mutate(pool, seconds):
        try:
            reached = lines_reached(parser, raw)
        except Exception:
            return {*pool, raw}
        if reached - seen:
            seen |= reached
            pool.append(raw)
    return set(pool)


def main(seconds: str, *parsers: str) -> int:
    """Grow the corpus. Returns the number of inputs that fail."""
    failures = 0
    for parser in parsers or PARSERS:
        corpus = read_corpus()
        old = corpus[parser]
        new, failed = minimise(parser, {*old, *fuzz(parser, old, int(seconds))})
        print(f"{parser}: {len(old)} inputs before, {len(new)} now, {failed} fail", flush=True)
        write_corpus({**corpus, parser: new})
        failures += failed
    return failures


if __name__ == "__main__":
    sys.exit(min(main(*sys.argv[1:]), 1))
