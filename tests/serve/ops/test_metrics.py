"""The metrics for Prometheus."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from contextfold.fold.events import BranchFolded
from contextfold.fold.service.reports import Activity
from contextfold.serve.hooks import READERS
from contextfold.serve.ops.metrics import HOSTS, RULES_MAX, ActivityRecorder, Metrics
from tests.support.daemon import Daemon, HttpAgent


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """The value of each sample, by its name and the values of its labels."""
    content, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(content.decode())
        for sample in family.samples
    }


def test_a_fold_that_saves_nothing_reduces_the_tokens_saved() -> None:
    metrics = Metrics([])
    record = ActivityRecorder(metrics, None)
    for summary_tokens, tokens_folded in ((60, 100), (60, 10)):
        record(Activity([BranchFolded(1, "", "br_1", "", summary_tokens, tokens_folded, 0, forced=False)]))
    assert samples(metrics)[("contextfold_tokens_saved",)] == -10


def test_a_caller_cannot_create_new_series() -> None:
    metrics = Metrics(["context_branch"])
    for number in range(RULES_MAX + 50):
        metrics.tool_call(f"guess{number}", "error", 0)
        metrics.count_redaction(f"rule{number}")
        metrics.hook_report(f"host{number}", f"outcome{number}")
        metrics.recorded(f"source{number}").inc()
    exported = samples(metrics)
    assert exported[("contextfold_tool_calls_total", "error", "unknown")] == RULES_MAX + 50
    assert exported[("contextfold_redactions_total", "other")] == 50
    assert exported[("contextfold_hook_reports_total", "other", "other")] == RULES_MAX + 50
    assert exported[("contextfold_tokens_recorded_total", "other")] == RULES_MAX + 50


def test_the_list_of_metrics_agrees_with_what_is_exported() -> None:
    metrics = Metrics([])
    page = metrics.render()[0].decode()
    for figure in metrics.figures:
        assert f"# HELP {figure.name} {figure.help}\n# TYPE {figure.name} {figure.kind}\n" in page


def test_a_daemon_counts_what_agents_do(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    agent = HttpAgent(daemon.port)
    try:
        for _ in range(2):
            branch = agent.call("context_branch", description="d", prompt="1234", project_path="/p")["branch_id"]
        agent.call("context_record", project_path="/p", type="read", tokens=30)
        agent.call("context_record", project_path="/p", type="read", tokens=12, failed=True)
        agent.call("context_return", message="m", project_path="/p")
        agent.call("context_branch", description="d", prompt="1234", project_path="/p")
        agent.call("context_rollback", branch_id=branch, project_path="/p", restore_state=False)
        agent.http.ask("BREW", "/v1/daemon")
        page = agent.http.ask("GET", "/metrics").body.decode()
    finally:
        agent.close()
        assert daemon.stop() == 0
    for line in (
        'contextfold_http_requests_total{method="other",route="/v1/daemon",status="405"} 1.0',
        'contextfold_operations_total{outcome="ok",source="reported"} 1.0',
        'contextfold_operations_total{outcome="failed",source="reported"} 1.0',
        'contextfold_tokens_recorded_total{source="reported"} 42.0',
        'contextfold_branches_total{change="created"} 3.0',
        'contextfold_branches_total{change="folded"} 1.0',
        'contextfold_branches_total{change="discarded"} 1.0',
        'contextfold_sessions_total{change="started"} 1.0',
        'contextfold_sessions_total{change="rolled_back"} 1.0',
    ):
        assert line in page


def test_every_host_with_hooks_has_a_label() -> None:
    assert set(READERS) == set(HOSTS)
