"""Traces as a collector receives them over a real socket: their contents, failing collectors, and settings."""

from __future__ import annotations

import http.server
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from contextfold import __version__
from contextfold.errors import SettingsError
from contextfold.serve.ops import otel
from contextfold.settings import read_daemon_settings
from tests.serve.proxy.raw_upstream import RawUpstream
from tests.support.daemon import ANSWER_TIMEOUT_S, LEGACY, MODERN, Daemon, Http, HttpAgent, Refused, read_log

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HERE = {"HOME": "/home/me"}
OK_STATUS, SERVER_FAILED = 200, 500
COMMAND_LINE = "import sys; from contextfold.cli.main import main; sys.exit(main(sys.argv[1:]))"


class Collector:
    """Receives OTLP over HTTP, and answers with a given status."""

    def __init__(self) -> None:
        self.status = OK_STATUS
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.received: queue.Queue[bytes] = queue.Queue()
        self.bodies: list[bytes] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                if collector.status == OK_STATUS:
                    collector.bodies.append(body)
                collector.received.put(body)
                collector.may_answer.wait(ANSWER_TIMEOUT_S)
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def requests(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> Span:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def wait_long_for_collector() -> None:
    otel.CLOSE_S = 60.0


@contextmanager
def traced(
    folder: Path, endpoint: str, *argv: str, prepare: Callable[[], None] | None = wait_long_for_collector, **env: str
) -> Iterator[Daemon]:
    """A daemon that exports its traces. After the `with` block all of them have arrived, also on a busy machine."""
    settings = {"NO_PROXY": "127.0.0.1", "CONTEXT_OTLP_ENDPOINT": endpoint, **env}
    with Daemon(folder, *argv, env=settings, prepare=prepare) as daemon:
        yield daemon


def attributes_of(span: Span) -> dict[str, str | int]:
    return {
        attribute.key: attribute.value.string_value
        if attribute.value.HasField("string_value")
        else attribute.value.int_value
        for attribute in span.attributes
    }


def logged(daemon: Daemon, beginning: str) -> list[dict[str, Any]]:
    return [line for line in read_log(daemon.log) if line["event"].startswith(beginning)]


class TestSpans:
    def test_a_proxied_request_is_a_span_without_its_path_or_key(self, tmp_path: Path, collector: Collector) -> None:
        with closing(RawUpstream()) as provider:
            with (
                traced(tmp_path, collector.url, "--anthropic-upstream", provider.url) as daemon,
                Http(daemon.port, x_api_key="the-providers-key", authorization="Bearer the-other") as http,
            ):
                body = b'{"messages":[{"role":"user","content":"the-text"}]}'
                assert http.ask("POST", "/proxy/anthropic/v1/messages?the-query", body).status == 200
                assert http.ask("GET", "/proxy/anthropic/the-path").status == 200
            assert "the-providers-key" in str(provider.next().headers)
        posted, got = (collector.named(f"{method} /proxy/anthropic/{{path:path}}") for method in ("POST", "GET"))
        assert (
            attributes_of(posted)["http.response.status_code"]
            == attributes_of(got)["http.response.status_code"]
            == OK_STATUS
        )
        assert not any(b"the-" in body for body in collector.bodies)

    @pytest.mark.parametrize("era", [LEGACY, MODERN])
    def test_a_request_has_a_tool_call_which_has_a_commit(self, tmp_path: Path, collector: Collector, era: str) -> None:
        with traced(tmp_path, collector.url) as daemon, HttpAgent(daemon.port, era) as agent:
            agent.call("context_record", project_path="/p", type="read", tokens=5)
        request, tool, commit = (
            collector.named(name) for name in ("POST /mcp", "tools/call context_record", "store commit")
        )
        assert request.parent_span_id == b""
        assert (tool.parent_span_id, commit.parent_span_id) == (request.span_id, tool.span_id)
        assert request.trace_id == tool.trace_id == commit.trace_id
        assert attributes_of(request) == {
            "http.request.method": "POST",
            "http.route": "/mcp",
            "http.response.status_code": 200,
        }
        assert attributes_of(tool) == {"contextfold.tool": "context_record", "contextfold.outcome": "ok"}
        assert attributes_of(commit) == {"contextfold.outcome": "commit"}
        assert request.kind == Span.SPAN_KIND_SERVER
        assert {span.status.code for span in (request, tool, commit)} == {Status.STATUS_CODE_UNSET}
        assert request.start_time_unix_nano <= tool.start_time_unix_nano <= commit.start_time_unix_nano
        assert commit.end_time_unix_nano <= tool.end_time_unix_nano <= request.end_time_unix_nano

    def test_a_failed_call_is_an_error_without_text(self, tmp_path: Path, collector: Collector) -> None:
        with traced(tmp_path, collector.url) as daemon, HttpAgent(daemon.port) as agent:
            with pytest.raises(Refused):
                agent.call("context_return", project_path="/p", message="m", branch_id="br_nowhere")
            with pytest.raises(Refused):
                agent.call("no_such_tool")
        failed, unknown = collector.named("tools/call context_return"), collector.named("tools/call unknown")
        assert attributes_of(failed)["contextfold.outcome"] == "branch_not_found"
        assert attributes_of(unknown)["contextfold.outcome"] == "unknown_tool"
        for span in (failed, unknown):
            assert (span.status.code, span.status.message, list(span.events)) == (Status.STATUS_CODE_ERROR, "", [])

    def test_a_hook_report_has_spans_for_the_request_and_for_its_recording(
        self, tmp_path: Path, collector: Collector
    ) -> None:
        report = {
            "hook_event_name": "PostToolUse",
            "session_id": "whisper-conversation",
            "cwd": "/whisper",
            "tool_name": "Read",
            "tool_use_id": "toolu_whisper",
            "tool_input": {"file_path": "/whisper/file"},
            "tool_response": "whisper",
        }
        with traced(tmp_path, collector.url) as daemon, Http(daemon.port) as http:
            assert http.ask("POST", "/hooks/claude-code", json.dumps(report).encode()).status == 200
        request = collector.named("POST /hooks/claude-code")
        written, commit = collector.named("hook reports"), collector.named("store commit")
        assert written.parent_span_id == commit.parent_span_id == request.span_id
        assert attributes_of(written) == {
            "contextfold.host": "claude-code",
            "contextfold.outcome": "recorded",
            "contextfold.reports": 1,
        }
        assert b"whisper" not in b"".join(collector.bodies).lower()

    def test_the_span_of_a_refused_request_has_the_reason(self, tmp_path: Path, collector: Collector) -> None:
        with traced(tmp_path, collector.url) as daemon, Http(daemon.port, host="evil.example") as http:
            assert http.ask("GET", "/healthz").status == 421
        assert attributes_of(collector.named("GET other")) == {
            "http.request.method": "GET",
            "http.route": "other",
            "http.response.status_code": 421,
            "contextfold.refused": "host_not_allowed",
        }

    def test_the_service_name_can_be_set(self, tmp_path: Path, collector: Collector) -> None:
        with traced(tmp_path / "ours", collector.url) as daemon, HttpAgent(daemon.port) as agent:
            agent.rpc("ping", {})
        with (
            traced(tmp_path / "theirs", collector.url, OTEL_SERVICE_NAME="folds") as daemon,
            Http(daemon.port) as http,
        ):
            http.ask("GET", "/healthz")
        default_resource, named_resource = (
            {attribute.key: attribute.value.string_value for attribute in request.resource_spans[0].resource.attributes}
            for request in collector.requests
        )
        assert (default_resource["service.name"], default_resource["service.version"]) == ("contextfold", __version__)
        assert named_resource["service.name"] == "folds"


class TestCallersTrace:
    def test_a_request_belongs_to_the_trace_of_its_traceparent(self, tmp_path: Path, collector: Collector) -> None:
        with (
            traced(tmp_path, collector.url) as daemon,
            HttpAgent(daemon.port, traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="vendor=whisper") as agent,
        ):
            agent.call("context_branch_status", project_path="/p")
        request = collector.named("POST /mcp")
        assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
        assert collector.named("tools/call context_branch_status").trace_id == request.trace_id
        assert b"whisper" not in b"".join(collector.bodies)


def test_no_content_of_a_request_is_exported(tmp_path: Path, collector: Collector) -> None:
    tokens = tmp_path / "tokens"
    result = subprocess.run(
        [sys.executable, "-m", "contextfold", "token", "whisper-owner", "--token-file", str(tokens)],
        capture_output=True,
        check=True,
        text=True,
    )
    token = result.stdout.split()[-1]
    headers = {
        "authorization": f"Bearer {token}",
        "x-context-session": "whisper-session",
        "idempotency-key": "whisper-operation",
        "user-agent": "whisper-agent",
        "x-whisper-header": "whisper",
    }
    with (
        traced(tmp_path / "daemon", collector.url, "--token-file", str(tokens)) as daemon,
        HttpAgent(daemon.port, **headers) as agent,
    ):
        branch = agent.call("context_branch", description="whisper d", prompt="whisper p", project_path="/whisper")
        with pytest.raises(Refused):
            agent.call("context_return", {}, {"idempotency-key": "whisper2"}, project_path="/whisper", whisper="x")
        with pytest.raises(Refused):
            agent.call("whisper_tool")
        assert agent.http.ask("GET", "/whisper/path?whisper=query").status == 404
        assert agent.http.ask("WHISPER", "/mcp").status == 405
    exported = b"".join(collector.bodies)
    # There are five requests, three tool calls and one commit.
    assert len(collector.spans) == 9
    assert b"whisper" not in exported.lower()
    for secret in (token, branch["branch_id"], "sess_", str(tmp_path)):
        assert secret.encode() not in exported
    keys = {key for span in collector.spans for key in attributes_of(span)}
    assert keys == {
        "http.request.method",
        "http.route",
        "http.response.status_code",
        "contextfold.tool",
        "contextfold.outcome",
    }


class TestFailingCollector:
    def test_an_unreachable_collector_changes_no_answer_and_does_not_delay_the_stop(self, tmp_path: Path) -> None:
        closed_collector = Collector()
        closed_collector.close()
        with traced(tmp_path, closed_collector.url, prepare=None) as daemon, HttpAgent(daemon.port) as agent:
            assert agent.call("context_record", project_path="/p", type="read", tokens=5)["tokens"] == 5
        events = [line["event"] for line in logged(daemon, "traces.")]
        assert events
        assert len(events) == len(set(events))
        assert "Traceback" not in daemon.log.read_text()
        assert logged(daemon, "library") == logged(daemon, "uncaught") == []

    def test_a_hanging_collector_changes_no_answer_and_does_not_delay_the_stop(
        self, tmp_path: Path, collector: Collector
    ) -> None:
        collector.may_answer.clear()
        with traced(tmp_path, collector.url, prepare=None) as daemon, HttpAgent(daemon.port) as agent:
            agent.call("context_branch_status", project_path="/p")
            # From now on the exporter waits for the collector's response.
            collector.received.get(timeout=ANSWER_TIMEOUT_S)
            assert agent.call("context_record", project_path="/p", type="read", tokens=5)["tokens"] == 5
        assert logged(daemon, "traces.")[-1]["event"] == "traces.cut"
        assert logged(daemon, "library") == logged(daemon, "uncaught") == []

    def test_failure_and_recovery_are_logged_once(self, tmp_path: Path, collector: Collector) -> None:
        collector.status = SERVER_FAILED
        with traced(tmp_path, collector.url) as daemon, HttpAgent(daemon.port) as agent:
            for _ in range(2):
                assert agent.call("context_branch_status", project_path="/p")["session_id"] is None
                collector.received.get(timeout=ANSWER_TIMEOUT_S)
            collector.status = OK_STATUS
            agent.call("context_branch_status", project_path="/p")
            collector.received.get(timeout=ANSWER_TIMEOUT_S)
        assert [line["event"] for line in logged(daemon, "traces.")] == [
            "traces.not_exported",
            "traces.exported_again",
        ]
        assert "Traceback" not in daemon.log.read_text()
        assert logged(daemon, "library") == []


@contextmanager
def serve_process(script: str, folder: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", script, "serve", "--port", "0", "--store", str(folder / "state.db")]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    with subprocess.Popen(
        argv,
        env={**inherited, "XDG_DATA_HOME": str(folder), "NO_PROXY": "127.0.0.1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout
    return int(process.stdout.readline().split()[-1].removesuffix("/mcp").rpartition(":")[2])


def stop(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=ANSWER_TIMEOUT_S)


NOT_INSTALLED = f"import sys; sys.modules['opentelemetry.sdk'] = None; {COMMAND_LINE}"


class TestTracingOff:
    def test_a_daemon_without_tracing_does_not_import_the_sdk(self, tmp_path: Path) -> None:
        script = "import sys; from contextfold.cli.main import main; main(sys.argv[1:]); print(*sys.modules)"
        with serve_process(script, tmp_path) as process:
            with HttpAgent(read_port(process)) as agent:
                agent.call("context_record", project_path="/p", type="read", tokens=5)
            loaded = stop(process)[0].split()
        assert "contextfold.serve.ops.tracing" in loaded
        assert not [name for name in loaded if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
        assert "requests" not in loaded

    def test_our_variable_without_the_extra_is_an_error_that_says_what_to_install(self, tmp_path: Path) -> None:
        with serve_process(NOT_INSTALLED, tmp_path, CONTEXT_OTLP_ENDPOINT="http://127.0.0.1:4318") as process:
            out, err = process.communicate(timeout=ANSWER_TIMEOUT_S)
        assert (process.returncode, out) == (1, "")
        assert "pip install 'contextfold[otel]'" in err

    def test_the_common_variable_without_the_extra_does_not_prevent_the_start(self, tmp_path: Path) -> None:
        with serve_process(NOT_INSTALLED, tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318") as process:
            read_port(process)
            assert '"event":"traces.off"' in stop(process)[1]
        assert process.returncode == 0


class TestEndpoint:
    @pytest.mark.parametrize(
        ("env", "endpoint"),
        [
            ({}, ("", False)),
            ({"CONTEXT_OTLP_ENDPOINT": "http://a:4318"}, ("http://a:4318", True)),
            ({"OTEL_EXPORTER_OTLP_ENDPOINT": "https://b/otlp"}, ("https://b/otlp", False)),
            (
                {"CONTEXT_OTLP_ENDPOINT": "http://a", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://b"},
                ("http://a", True),
            ),
            ({"CONTEXT_OTLP_ENDPOINT": "off", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://b"}, ("", False)),
            ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://b:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ("", False)),
            ({"OTEL_EXPORTER_OTLP_ENDPOINT": "b:4317"}, ("", False)),
        ],
    )
    def test_our_variable_overrides_the_common_one(self, env: Mapping[str, str], endpoint: tuple[str, bool]) -> None:
        settings = read_daemon_settings({**HERE, **env}, {})
        assert (settings.otlp_endpoint, settings.otlp_is_asked_for) == endpoint

    @pytest.mark.parametrize("text", ["", "a:4318", "ftp://a", "http://", "http://me:secret@a", "http://a\n"])
    def test_an_invalid_url_is_refused_without_repeating_it(self, text: str) -> None:
        with pytest.raises(SettingsError, match="CONTEXT_OTLP_ENDPOINT must be off, or a URL") as raised:
            read_daemon_settings({**HERE, "CONTEXT_OTLP_ENDPOINT": text}, {})
        assert "secret" not in str(raised.value)

    def test_an_endpoint_with_the_full_path_is_used_unchanged(self, tmp_path: Path, collector: Collector) -> None:
        with traced(tmp_path, f"{collector.url}/v1/traces/") as daemon, HttpAgent(daemon.port) as agent:
            agent.call("context_branch_status", project_path="/p")
        assert collector.named("POST /mcp")
