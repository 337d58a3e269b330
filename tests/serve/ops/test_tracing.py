"""Traces as a collector receives them over a real socket: what they contain, what they must not, and their cost."""

from __future__ import annotations

import http.server
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from contextfold import __version__
from contextfold.settings import SettingsError, daemon_settings_from
from tests.serve.ops import patient_daemon
from tests.serve.proxy.raw_upstream import RawUpstream
from tests.support.daemon import ANSWER_TIMEOUT_S, LEGACY, MODERN, Daemon, Http, HttpAgent, Refused

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HERE = {"HOME": "/home/me"}
OK_STATUS, SERVER_FAILED = 200, 500
COMMAND_LINE = "import sys; from contextfold.cli.main import main; sys.exit(main(sys.argv[1:]))"


class Collector:
    """Receives OTLP over HTTP, and answers with a given status."""

    def __init__(self) -> None:
        self.status = OK_STATUS
        self.answers = threading.Event()
        self.answers.set()
        self.arrived: queue.Queue[bytes] = queue.Queue()
        self.bodies: list[bytes] = []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                if collector.status == OK_STATUS:
                    collector.bodies.append(body)
                collector.arrived.put(body)
                collector.answers.wait(ANSWER_TIMEOUT_S)
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_told: object) -> None:
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
        self.answers.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


class Patient(Daemon):
    """`context serve`, except that at its end it waits for the collector, however busy the machine is."""

    def start(self) -> None:
        self._argv[:1] = [str(Path(patient_daemon.__file__))]
        super().start()


@contextmanager
def traced(folder: Path, endpoint: str, *argv: str, kind: type[Daemon] = Patient, **env: str) -> Iterator[Daemon]:
    """A daemon that exports its traces; they have arrived when this ends."""
    running = kind(folder, *argv, env={"NO_PROXY": "127.0.0.1", "CONTEXT_OTLP_ENDPOINT": endpoint, **env})
    try:
        yield running
    finally:
        assert running.stop() == 0


@contextmanager
def talking(port: int, era: str = LEGACY, **headers: str) -> Iterator[HttpAgent]:
    agent = HttpAgent(port, era, **headers)
    try:
        yield agent
    finally:
        agent.close()


def told(span: Span) -> dict[str, str | int]:
    return {
        each.key: each.value.string_value if each.value.HasField("string_value") else each.value.int_value
        for each in span.attributes
    }


def logged(running: Daemon, beginning: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in running.log.read_text().splitlines()]
    return [line for line in lines if line["event"].startswith(beginning)]


class TestWhatIsTraced:
    def test_a_proxied_request_is_a_span_without_its_path_or_key(self, tmp_path: Path, collector: Collector) -> None:
        with closing(RawUpstream()) as provider:
            with (
                traced(tmp_path, collector.url, "--anthropic-upstream", provider.url) as running,
                closing(Http(running.port, x_api_key="the-providers-key", authorization="Bearer the-other")) as http,
            ):
                body = b'{"messages":[{"role":"user","content":"the-text"}]}'
                assert http.ask("POST", "/proxy/anthropic/v1/messages?the-query", body).status == 200
                assert http.ask("GET", "/proxy/anthropic/the-path").status == 200
            assert "the-providers-key" in str(provider.next().headers)
        posted, got = (collector.named(f"{method} /proxy/anthropic/{{path:path}}") for method in ("POST", "GET"))
        assert told(posted)["http.response.status_code"] == told(got)["http.response.status_code"] == OK_STATUS
        assert not any(b"the-" in body for body in collector.bodies)

    @pytest.mark.parametrize("era", [LEGACY, MODERN])
    def test_a_call_is_a_request_with_a_tool_call_in_it_with_a_commit_in_it(
        self, tmp_path: Path, collector: Collector, era: str
    ) -> None:
        with traced(tmp_path, collector.url) as running, talking(running.port, era) as agent:
            agent.call("context_record", project_path="/p", type="read", tokens=5)
        request, tool, commit = (
            collector.named(name) for name in ("POST /mcp", "tools/call context_record", "store commit")
        )
        assert request.parent_span_id == b""
        assert (tool.parent_span_id, commit.parent_span_id) == (request.span_id, tool.span_id)
        assert request.trace_id == tool.trace_id == commit.trace_id
        assert told(request) == {
            "http.request.method": "POST",
            "http.route": "/mcp",
            "http.response.status_code": 200,
        }
        assert told(tool) == {"contextfold.tool": "context_record", "contextfold.outcome": "ok"}
        assert told(commit) == {"contextfold.outcome": "commit"}
        assert request.kind == Span.SPAN_KIND_SERVER
        assert {span.status.code for span in (request, tool, commit)} == {Status.STATUS_CODE_UNSET}
        assert request.start_time_unix_nano <= tool.start_time_unix_nano <= commit.start_time_unix_nano
        assert commit.end_time_unix_nano <= tool.end_time_unix_nano <= request.end_time_unix_nano

    def test_two_requests_of_one_connection_are_two_traces(self, tmp_path: Path, collector: Collector) -> None:
        with traced(tmp_path, collector.url) as running, talking(running.port) as agent:
            for _ in range(2):
                agent.call("context_branch_status", project_path="/p")
        tools = [span for span in collector.spans if span.name.startswith("tools/call")]
        requests = {span.span_id: span.trace_id for span in collector.spans if span.name == "POST /mcp"}
        assert len(requests) == len({span.trace_id for span in tools}) == 2
        assert all(requests[span.parent_span_id] == span.trace_id for span in tools)

    def test_a_failed_call_is_an_error_without_words(self, tmp_path: Path, collector: Collector) -> None:
        with traced(tmp_path, collector.url) as running, talking(running.port) as agent:
            with pytest.raises(Refused):
                agent.call("context_return", project_path="/p", message="m", branch_id="br_nowhere")
            with pytest.raises(Refused):
                agent.call("no_such_tool")
        failed, unknown = collector.named("tools/call context_return"), collector.named("tools/call unknown")
        assert told(failed)["contextfold.outcome"] == "branch_not_found"
        assert told(unknown)["contextfold.outcome"] == "unknown_tool"
        for span in (failed, unknown):
            assert (span.status.code, span.status.message, list(span.events)) == (Status.STATUS_CODE_ERROR, "", [])

    def test_a_hook_report_is_a_request_with_what_became_of_it_below(
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
        with traced(tmp_path, collector.url) as running:
            http = Http(running.port)
            assert http.ask("POST", "/hooks/claude-code", json.dumps(report).encode()).status == 200
            http.close()
        request = collector.named("POST /hooks/claude-code")
        written, commit = collector.named("hook reports"), collector.named("store commit")
        assert written.parent_span_id == commit.parent_span_id == request.span_id
        assert told(written) == {
            "contextfold.host": "claude-code",
            "contextfold.outcome": "recorded",
            "contextfold.reports": 1,
        }
        assert b"whisper" not in b"".join(collector.bodies).lower()

    def test_a_refusal_at_the_edge_says_why(self, tmp_path: Path, collector: Collector) -> None:
        with traced(tmp_path, collector.url) as running:
            http = Http(running.port, host="evil.example")
            assert http.ask("GET", "/healthz").status == 421
            http.close()
        assert told(collector.named("GET other")) == {
            "http.request.method": "GET",
            "http.route": "other",
            "http.response.status_code": 421,
            "contextfold.refused": "host_not_allowed",
        }

    def test_the_service_is_named_as_the_operator_wants(self, tmp_path: Path, collector: Collector) -> None:
        with traced(tmp_path / "ours", collector.url) as running, talking(running.port) as agent:
            agent.rpc("ping", {})
        with traced(tmp_path / "theirs", collector.url, OTEL_SERVICE_NAME="folds") as running:
            http = Http(running.port)
            http.ask("GET", "/healthz")
            http.close()
        ours, theirs = (
            {each.key: each.value.string_value for each in request.resource_spans[0].resource.attributes}
            for request in collector.requests
        )
        assert (ours["service.name"], ours["service.version"]) == ("contextfold", __version__)
        assert theirs["service.name"] == "folds"


class TestTheCallersTrace:
    def test_a_request_belongs_to_the_trace_it_names(self, tmp_path: Path, collector: Collector) -> None:
        with (
            traced(tmp_path, collector.url) as running,
            talking(running.port, traceparent=f"00-{TRACE}-{PARENT}-01", tracestate="vendor=whisper") as agent,
        ):
            agent.call("context_branch_status", project_path="/p")
        request = collector.named("POST /mcp")
        assert (request.trace_id.hex(), request.parent_span_id.hex()) == (TRACE, PARENT)
        assert collector.named("tools/call context_branch_status").trace_id == request.trace_id
        assert b"whisper" not in b"".join(collector.bodies)

    def test_a_caller_that_does_not_sample_is_not_traced(self, tmp_path: Path, collector: Collector) -> None:
        with (
            traced(tmp_path, collector.url) as running,
            talking(running.port, traceparent=f"00-{TRACE}-{PARENT}-00") as agent,
        ):
            agent.call("context_branch_status", project_path="/p")
        assert collector.spans == []

    def test_what_is_no_traceparent_is_as_if_not_sent(self, tmp_path: Path, collector: Collector) -> None:
        wrong = ["", "nonsense", f"ff-{TRACE}-{PARENT}-01", f"00-{'0' * 32}-{PARENT}-01", "ü" * 55, "0" * 5000]
        with traced(tmp_path, collector.url) as running:
            http = Http(running.port)
            for sent in wrong:
                assert http.ask("GET", "/healthz", headers={"traceparent": sent}).status == 200
            http.close()
        assert [span.parent_span_id for span in collector.spans] == [b""] * len(wrong)
        traces = {span.trace_id.hex() for span in collector.spans}
        assert len(traces) == len(wrong)
        assert not traces & {"0" * 32, TRACE}


def test_nothing_of_a_request_is_in_what_is_exported(tmp_path: Path, collector: Collector) -> None:
    tokens = tmp_path / "tokens"
    made = subprocess.run(
        [sys.executable, "-m", "contextfold", "token", "whisper-owner", "--token-file", str(tokens)],
        capture_output=True,
        check=True,
        text=True,
    )
    token = made.stdout.split()[-1]
    headers = {
        "authorization": f"Bearer {token}",
        "x-context-session": "whisper-session",
        "idempotency-key": "whisper-operation",
        "user-agent": "whisper-agent",
        "x-whisper-header": "whisper",
    }
    with (
        traced(tmp_path / "daemon", collector.url, "--token-file", str(tokens)) as running,
        talking(running.port, **headers) as agent,
    ):
        branched = agent.call("context_branch", description="whisper d", prompt="whisper p", project_path="/whisper")
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
    for secret in (token, branched["branch_id"], "sess_", str(tmp_path)):
        assert secret.encode() not in exported
    keys = {key for span in collector.spans for key in told(span)}
    assert keys == {
        "http.request.method",
        "http.route",
        "http.response.status_code",
        "contextfold.tool",
        "contextfold.outcome",
    }


class TestACollectorThatDoesNotTakeThem:
    def test_one_that_is_away_changes_no_answer_and_does_not_hold_up_the_end(self, tmp_path: Path) -> None:
        gone = Collector()
        gone.close()
        with traced(tmp_path, gone.url, kind=Daemon) as running, talking(running.port) as agent:
            assert agent.call("context_record", project_path="/p", type="read", tokens=5)["tokens"] == 5
        events = [line["event"] for line in logged(running, "traces.")]
        assert events
        assert len(events) == len(set(events))
        assert "Traceback" not in running.log.read_text()
        assert logged(running, "library") == logged(running, "uncaught") == []

    def test_one_that_hangs_changes_no_answer_and_does_not_hold_up_the_end(
        self, tmp_path: Path, collector: Collector
    ) -> None:
        collector.answers.clear()
        with traced(tmp_path, collector.url, kind=Daemon) as running, talking(running.port) as agent:
            agent.call("context_branch_status", project_path="/p")
            # From now on the exporter waits for the collector's response.
            collector.arrived.get(timeout=ANSWER_TIMEOUT_S)
            assert agent.call("context_record", project_path="/p", type="read", tokens=5)["tokens"] == 5
        assert logged(running, "traces.")[-1]["event"] == "traces.cut"
        assert logged(running, "library") == logged(running, "uncaught") == []

    def test_failing_is_told_once_and_so_is_working_again(self, tmp_path: Path, collector: Collector) -> None:
        collector.status = SERVER_FAILED
        with traced(tmp_path, collector.url) as running, talking(running.port) as agent:
            for _ in range(2):
                assert agent.call("context_branch_status", project_path="/p")["session_id"] is None
                collector.arrived.get(timeout=ANSWER_TIMEOUT_S)
            collector.status = OK_STATUS
            agent.call("context_branch_status", project_path="/p")
            collector.arrived.get(timeout=ANSWER_TIMEOUT_S)
        assert [line["event"] for line in logged(running, "traces.")] == [
            "traces.not_exported",
            "traces.exported_again",
        ]
        assert "Traceback" not in running.log.read_text()
        assert logged(running, "library") == []


@contextmanager
def served(script: str, folder: Path, **env: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", script, "serve", "--port", "0", "--store", str(folder / "state.db")]
    given = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    with subprocess.Popen(
        argv,
        env={**given, "XDG_DATA_HOME": str(folder), "NO_PROXY": "127.0.0.1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def listening(process: subprocess.Popen[str]) -> int:
    assert process.stdout
    return int(process.stdout.readline().split()[-1].removesuffix("/mcp").rpartition(":")[2])


def stopped(process: subprocess.Popen[str]) -> tuple[str, str]:
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=ANSWER_TIMEOUT_S)


NOT_INSTALLED = f"import sys; sys.modules['opentelemetry.sdk'] = None; {COMMAND_LINE}"


class TestWhereTheyAreOff:
    def test_a_daemon_without_them_loads_nothing_for_them(self, tmp_path: Path) -> None:
        script = "import sys; from contextfold.cli.main import main; main(sys.argv[1:]); print(*sys.modules)"
        with served(script, tmp_path) as process:
            with talking(listening(process)) as agent:
                agent.call("context_record", project_path="/p", type="read", tokens=5)
            loaded = stopped(process)[0].split()
        assert "contextfold.serve.ops.tracing" in loaded
        assert not [name for name in loaded if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))]
        assert "requests" not in loaded

    def test_asked_for_without_the_extra_the_daemon_says_what_to_install(self, tmp_path: Path) -> None:
        with served(NOT_INSTALLED, tmp_path, CONTEXT_OTLP_ENDPOINT="http://127.0.0.1:4318") as process:
            out, err = process.communicate(timeout=ANSWER_TIMEOUT_S)
        assert (process.returncode, out) == (1, "")
        assert "pip install 'contextfold[otel]'" in err

    def test_the_common_variable_without_the_extra_does_not_keep_the_daemon_from_starting(self, tmp_path: Path) -> None:
        with served(NOT_INSTALLED, tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318") as process:
            listening(process)
            assert '"event":"traces.off"' in stopped(process)[1]
        assert process.returncode == 0


class TestWhereTheyGo:
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
    def test_ours_goes_before_the_common_one(self, env: Mapping[str, str], endpoint: tuple[str, bool]) -> None:
        settings = daemon_settings_from({**HERE, **env}, {})
        assert (settings.otlp_endpoint, settings.otlp_is_asked_for) == endpoint

    @pytest.mark.parametrize("text", ["", "a:4318", "ftp://a", "http://", "http://me:secret@a", "http://a\n"])
    def test_what_is_no_url_is_refused_without_repeating_it(self, text: str) -> None:
        with pytest.raises(SettingsError, match="CONTEXT_OTLP_ENDPOINT must be off, or a URL") as refused:
            daemon_settings_from({**HERE, "CONTEXT_OTLP_ENDPOINT": text}, {})
        assert "secret" not in str(refused.value)

    def test_an_endpoint_that_is_the_whole_path_is_taken_as_it_is(self, tmp_path: Path, collector: Collector) -> None:
        with traced(tmp_path, f"{collector.url}/v1/traces/") as running, talking(running.port) as agent:
            agent.call("context_branch_status", project_path="/p")
        assert collector.named("POST /mcp")
