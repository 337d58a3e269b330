"""Every part of the bench runs and prints its figures. Only `make soak` runs this; `make bench` measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import commands as bench_commands
from bench import corpora as bench_corpora
from bench import daemon as bench_daemon
from bench import hooks as bench_hooks
from bench import nats as bench_nats
from bench import page as bench_page
from bench import proxy as bench_proxy
from bench import replay as bench_replay
from bench import resolve as bench_resolve
from bench import secrets as bench_secrets
from bench import stdio as bench_stdio
from bench import tampering as bench_tampering

FIGURES_MIN = 25


def test_every_part_of_the_bench_prints_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The corpora are too small to measure; figures must be printed with their limits and verdicts."""
    monkeypatch.setattr(bench_corpora, "HERE", tmp_path)
    monkeypatch.setattr(bench_resolve, "HERE", tmp_path)
    monkeypatch.setattr(bench_stdio, "HERE", tmp_path)
    sizes = (5, 10, 20)
    bench_resolve.main(sizes, turns=1)
    bench_stdio.main(sizes, turns=1)
    monkeypatch.setattr(bench_tampering, "HERE", tmp_path)
    assert bench_tampering.main(sizes)
    bench_daemon.main(turns=1, sessions=50)
    bench_commands.main(turns=1)
    bench_hooks.main(turns=1, rounds=3)
    bench_nats.main(turns=1, number=16)
    bench_replay.main(turns=1, folder=tmp_path, most=1, at_least=100_000, stubs=5)
    bench_proxy.main(turns=1, requests=16, subtasks=1)
    bench_secrets.main(turns=1)
    bench_page.main(turns=1, sessions=20, branches=2, long=61, operations=300)
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.rstrip().endswith((" ok", " OVER"))]
    assert len(rows) > FIGURES_MIN
    assert printed.count("one-shot noticed, warm library noticed, warm stdio noticed") == 4
