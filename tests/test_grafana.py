"""The Grafana dashboard: every query uses metrics that a daemon really has, and no metric is forgotten."""

from __future__ import annotations

import json
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from contextfold.serve.ops.metrics import Metrics
from tests.support.daemon import Daemon, HttpAgent
from tests.support.machine import ROOT

DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "contextfold.json").read_text(encoding="utf-8"))
PANELS = DASHBOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
# One histogram has series with these suffixes.
SUFFIXES = ("_bucket", "_count", "_sum")

# Metrics that are on no panel, each with the reason.
NOT_SHOWN: set[str] = set()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The series that /metrics of a daemon reports after some work, by name, with their labels."""
    running = Daemon(tmp_path_factory.mktemp("daemon"))
    agent = HttpAgent(running.port)
    try:
        agent.call("context_branch", description="d", prompt="password=hunter2-Q7xW9", project_path="/p")
        agent.call("context_record", project_path="/p", type="read", content="text")
        agent.call("context_return", message="m", project_path="/p")
        assert agent.http.ask("GET", "/healthz", headers={"host": "evil.example"}).status == 421
        page = agent.http.ask("GET", "/metrics").body.decode()
    finally:
        agent.close()
        running.stop()
    names: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            names.setdefault(sample.name, set()).update(sample.labels)
    return names


def metrics_in(query: str) -> dict[str, set[str]]:
    """The metrics in a query, each with the labels that it is filtered by."""
    return {
        name: set(re.findall(r"(\w+)\s*(?:=~|!=|=)", matchers)) - {"job", "instance"}
        for name, matchers in re.findall(r"\b([a-z_]+)\{([^}]*)\}", query)
    }


def without_suffix(name: str) -> str:
    return re.sub(f"({'|'.join(SUFFIXES)})$", "", name)


def test_every_metric_in_a_query_is_one_that_a_daemon_reports(scraped: dict[str, set[str]]) -> None:
    for query in QUERIES:
        metrics = metrics_in(query)
        assert metrics, query
        for name, labels in metrics.items():
            assert name in scraped, query
            grouped = {label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
            assert labels | grouped <= scraped[name], query


def test_every_metric_is_on_a_panel_or_omitted_on_purpose() -> None:
    shown = {without_suffix(name) for query in QUERIES for name in metrics_in(query)}
    ours = {figure.name for figure in Metrics([]).figures}
    assert ours - shown == NOT_SHOWN


def test_every_query_uses_the_chosen_source_job_and_instance() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables.keys() == {"datasource", "job", "instance"}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    for panel in PANELS:
        for target in panel.get("targets", ()):
            assert target["datasource"] == panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert target["expr"].count('{job=~"$job",instance=~"$instance"') == len(metrics_in(target["expr"]))
