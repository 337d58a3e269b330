"""Three model providers on one local port, in strict form: requests that their APIs would refuse get the same errors.

A request that follows the rules (`messages/rules_…`) gets what the script says, streamed or not, with figures computed
from the request itself: four bytes a token, and a prompt cache that knows exact prefixes. All requests are recorded.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.fold.messages import rules_anthropic, rules_gemini, rules_openai_chat, rules_openai_responses
from tests.support.upstream_answers import Billed, Fail, Say, body_of, events_of

APIS = {"/v1/messages": "anthropic", "/v1/chat/completions": "openai-chat", "/v1/responses": "openai-responses"}
GEMINI_PATH = re.compile(r"/v1beta/models/(?P<model>[^/:]+):(?P<stream>streamG|g)enerateContent")
RULES = {
    "anthropic": rules_anthropic.violations,
    "gemini": rules_gemini.violations,
    "openai-chat": rules_openai_chat.violations,
    "openai-responses": rules_openai_responses.violations,
}
MESSAGES_KEY = {"openai-responses": "input", "gemini": "contents"}
BYTES_PER_TOKEN = 4
# Every request has this many tokens that are never cached.
OVERHEAD_TOKENS = 3
MODEL = "model-1"
# These models check that a thinking block is sent back in its own conversation.
BINDING_MODELS = re.compile(r"claude-.*-5-[1-9]")
# With this setting in the request, the model drops such a block without an error.
DROP_BLOCK = {"prefix_mismatch_behavior": "drop_block"}
BAD_KEY = "sk-bad"
STREAM_WAIT_S = 60


class ReceivedRequest(NamedTuple):
    """A request as it was received, and what it is charged for."""

    api: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    body: Any
    violations: list[str]
    billed: Billed | None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The list of messages or items."""
        listed: list[dict[str, Any]] = self.body[MESSAGES_KEY.get(self.api, "messages")]
        return listed


# The arguments are a request's body and its API.
Script = Callable[[Any, str], Say | Fail]


def plain(_body: Any, _api: str) -> Say:
    return Say("Fine.")


class Upstream:
    """Listens from its construction on, until its `with` ends."""

    def __init__(self, script: Script = plain) -> None:
        self.script = script
        self.requests: list[ReceivedRequest] = []
        # If this is not set, requests that break a rule are answered, too.
        self.is_strict = True
        # If this is set and the client accepts gzip, responses that are not streamed are compressed.
        self.compresses = True
        # If this is given, a stream waits for the event after its first words.
        self.resume_stream: threading.Event | None = None
        # If this is given, a stream waits for the event before it ends.
        self.end_stream: threading.Event | None = None
        self.cache = PromptCache()
        self.bindings = Bindings()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.upstream = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def argv(self) -> list[str]:
        """The options that point `context serve` here."""
        return ["--anthropic-upstream", self.url, "--openai-upstream", self.url + "/v1", "--gemini-upstream", self.url]

    @property
    def violations(self) -> list[str]:
        return [f"{request.path}: {text}" for request in self.requests for text in request.violations]

    @property
    def billed(self) -> list[Billed]:
        return [request.billed for request in self.requests if request.billed is not None]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Upstream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PromptCache:
    """Knows every prefix that was sent, or only the last request. Prefixes end at messages."""

    def __init__(self, *, forgets: bool = False) -> None:
        self.forgets = forgets
        self._known: set[bytes] = set()
        self._lock = threading.Lock()

    def bill(self, api: str, body: Mapping[str, Any], say: Say) -> Billed:
        read, fresh = self._prompt(_parts(api, body))
        output = -(-len(say.to_json()) // BYTES_PER_TOKEN)
        if api == "openai-chat":
            # This API does not report tokens that are written to the cache.
            return Billed(fresh + OVERHEAD_TOKENS, read, 0, output)
        return Billed(OVERHEAD_TOKENS, read, fresh, output)

    def _prompt(self, parts: list[bytes]) -> tuple[int, int]:
        """The number of tokens that are read from the cache, and of those that are new to it."""
        with self._lock:
            digest = hashlib.sha256()
            read = total = 0
            for part in parts:
                digest.update(b"%d:" % len(part) + part)
                total += len(part)
                if digest.digest() in self._known:
                    read = total
                elif not self.forgets:
                    self._known.add(digest.digest())
            if self.forgets:
                self._known = {digest.digest()}
        read_tokens = read // BYTES_PER_TOKEN
        return read_tokens, -(-total // BYTES_PER_TOKEN) - read_tokens


class Bindings:
    """A check of newer Anthropic models: a thinking block is accepted only after the messages that preceded it."""

    def __init__(self) -> None:
        self._prefix_by_signature: dict[str, str] = {}

    def violations(self, body: Mapping[str, Any]) -> list[str]:
        thinking = body.get("thinking") or {}
        if not BINDING_MODELS.search(body["model"]) or thinking.get("block_binding") == DROP_BLOCK:
            return []
        return [
            f"messages.{index}: The block is bound to a different conversation"
            for index, message in enumerate(body["messages"])
            if message["role"] == "assistant" and isinstance(message["content"], list)
            for block in message["content"]
            if block["type"] == "thinking"
            and self._prefix_by_signature.get(block["signature"]) != _prefix_hash(body, index)
        ]

    def signed(self, body: Mapping[str, Any], say: Say) -> Say:
        if not say.thought:
            return say
        signature = f"signature-{len(self._prefix_by_signature)}"
        self._prefix_by_signature[signature] = _prefix_hash(body, len(body["messages"]))
        return replace(say, signature=signature)


def _prefix_hash(body: Mapping[str, Any], end: int) -> str:
    parts = [body.get("system"), body.get("tools"), [_blocks(message) for message in body["messages"][:end]]]
    return hashlib.sha256(json.dumps(without_cache_marks(parts)).encode()).hexdigest()


def _blocks(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its text as a block, because clients write it so when they mark it for the cache."""
    content = message["content"]
    return {**message, "content": [{"type": "text", "text": content}] if isinstance(content, str) else content}


def without_cache_marks(value: Any) -> Any:
    """The value without cache marks, which are not part of what a model reads and which clients move."""
    if isinstance(value, dict):
        return {name: without_cache_marks(each) for name, each in value.items() if name != "cache_control"}
    return [without_cache_marks(each) for each in value] if isinstance(value, list) else value


def _parts(api: str, body: Mapping[str, Any]) -> list[bytes]:
    listed = body[MESSAGES_KEY.get(api, "messages")]
    first = [body.get(name) for name in ("model", "tools", "system", "instructions", "systemInstruction")]
    return [json.dumps(part).encode() for part in [first, *(listed if isinstance(listed, list) else [listed])]]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    upstream: Upstream

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client may leave before everything was flushed.
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        anthropic = "anthropic-version" in self.headers
        if self.path.partition("?")[0] != "/v1/models":
            self._fail("anthropic" if anthropic else "openai-chat", Fail(404, "not_found_error", self.path))
        elif anthropic:
            model = {"type": "model", "id": MODEL, "display_name": "One", "created_at": "2026-01-01T00:00:00Z"}
            self._answer({"data": [model], "has_more": False, "first_id": MODEL, "last_id": MODEL})
        else:
            listed = {"id": MODEL, "object": "model", "created": 1, "owned_by": "us"}
            self._answer({"object": "list", "data": [listed]})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["content-length"]))
        path = self.path.partition("?")[0]
        if path == "/v1/messages/count_tokens":
            self._answer({"input_tokens": len(raw) // BYTES_PER_TOKEN})
            return
        gemini = GEMINI_PATH.fullmatch(path)
        api = "gemini" if gemini else APIS.get(path)
        if api is None:
            self._fail("openai-chat", Fail(404, "not_found_error", path))
            return
        body = json.loads(raw)
        # Gemini has these two in the path.
        model = gemini["model"] if gemini else body["model"]
        is_streamed = gemini["stream"] == "streamG" if gemini else bool(body.get("stream"))
        try:
            self._reply(api, raw, body, model, is_streamed=is_streamed)
        except OSError:
            self.close_connection = True

    def _reply(self, api: str, raw: bytes, body: Any, model: str, *, is_streamed: bool) -> None:
        upstream = self.server.upstream
        headers = {name.lower(): value for name, value in self.headers.items()}
        violations = RULES[api](body)
        if api == "anthropic" and not violations:
            violations += upstream.bindings.violations(body)
        violations += [f"header {name} was sent on" for name in headers if name.startswith("x-context-")]
        if api == "anthropic" and "anthropic-version" not in headers:
            violations.append("header anthropic-version is missing")
        reply: Say | Fail
        if violations and upstream.is_strict:
            reply = Fail(400, "invalid_request_error", "; ".join(violations))
        elif not _has_key(api, headers):
            reply = Fail(401, "authentication_error" if api == "anthropic" else "invalid_api_key", "no such key")
        else:
            reply = upstream.script(body, api)
            if isinstance(reply, Say) and api == "anthropic":
                reply = upstream.bindings.signed(body, reply)
        billed = upstream.cache.bill(api, body, reply) if isinstance(reply, Say) else None
        upstream.requests.append(ReceivedRequest(api, self.path, headers, raw, body, violations, billed))
        if isinstance(reply, Fail) or billed is None:
            assert isinstance(reply, Fail)
            self._fail(api, reply)
        elif is_streamed:
            counts = bool((body.get("stream_options") or {}).get("include_usage"))
            self._stream(events_of(api, model, reply, billed, counts=counts))
        else:
            self._answer(body_of(api, model, reply, billed))

    def _fail(self, api: str, fail: Fail) -> None:
        self._answer(fail.body(api), fail.status, fail.headers)

    def _answer(self, value: Any, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> None:
        body = json.dumps(value).encode()
        compressed = self.server.upstream.compresses and "gzip" in self.headers.get("accept-encoding", "")
        if compressed:
            body = gzip.compress(body, 1)
        self.send_response(status)
        for name, text in (("content-type", "application/json"), ("request-id", "req_011"), *headers):
            self.send_header(name, text)
        if compressed:
            self.send_header("content-encoding", "gzip")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _stream(self, events: Iterator[bytes]) -> None:
        self.send_response(200)
        for name, text in (("content-type", "text/event-stream; charset=utf-8"), ("transfer-encoding", "chunked")):
            self.send_header(name, text)
        self.end_headers()
        resume_stream = self.server.upstream.resume_stream
        for event in events:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
            self.wfile.flush()
            if resume_stream is not None and b"delta" in event[:200]:
                resume_stream.wait(STREAM_WAIT_S)
        if self.server.upstream.end_stream is not None:
            self.server.upstream.end_stream.wait(STREAM_WAIT_S)
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()


def _has_key(api: str, headers: Mapping[str, str]) -> bool:
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    key = headers.get({"anthropic": "x-api-key", "gemini": "x-goog-api-key"}.get(api, ""), bearer)
    return key not in ("", BAD_KEY)
