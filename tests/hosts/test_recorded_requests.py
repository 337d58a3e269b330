"""The requests of the newest agent programs, as `make hosts` recorded them, through the proxy of a daemon."""

from __future__ import annotations

import json

import pytest

from tests.hosts.recorded_requests import FOLDER, RecordedRequest, Replayed, load, replay
from tests.support.daemon import ShiftedClockDaemon
from tests.support.upstream import ReceivedRequest, Upstream

RECORDED_MIN = 20
# Longer than any provider keeps a prompt.
PAUSE_S = 25 * 3600
MASKED = b"output_masked"
STUB = b"[contextfold: result of "
RECORDINGS = sorted(FOLDER.glob("*.json.xz"))
OTHER = RecordedRequest(
    "/proxy/anthropic/v1/messages",
    {"x-api-key": "sk-local", "anthropic-version": "2023-06-01"},
    b'{"model":"claude-sonnet-4-5","max_tokens":9,"messages":[{"role":"user","content":"Something else."}]}',
)

Exchange = tuple[Replayed, ReceivedRequest]


@pytest.fixture(scope="module")
def exchanges(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Exchange]]:
    """What the proxy made of the requests of each recording. All take their pause at the same time."""
    requests = [(path.name, request) for path in RECORDINGS for request in load(path)]
    found: dict[str, list[Exchange]] = {path.name: [] for path in RECORDINGS}
    with Upstream() as upstream:
        upstream.is_strict = False
        daemon = ShiftedClockDaemon(tmp_path_factory.mktemp("recorded") / "daemon", *upstream.argv())
        try:
            for is_after_pause in (False, True):
                for name, request in requests:
                    if request.is_after_pause == is_after_pause:
                        (replayed,) = replay([request], daemon.port)
                        found[name].append((replayed, upstream.requests[-1]))
                # When this one is answered, the end of each of those has been noted.
                list(replay([OTHER], daemon.port))
                daemon.advance_clock(PAUSE_S)
        finally:
            daemon.stop()
    return found


@pytest.mark.parametrize("name", [path.name for path in RECORDINGS])
def test_every_recorded_request_is_sent_valid_and_explained(name: str, exchanges: dict[str, list[Exchange]]) -> None:
    assert len(exchanges[name]) >= RECORDED_MIN
    for number, (replayed, got) in enumerate(exchanges[name]):
        request, receipt = replayed.request, replayed.receipt
        assert replayed.status == 200, number
        # Gemini CLI breaks a rule itself after it was resumed; the proxy adds no breach.
        assert len(got.violations) <= len(request.violations), (number, got.violations)
        is_folded = receipt["tokens_after"] < receipt["tokens_before"]
        assert is_folded == (receipt["first_changed"] is not None), number
        if not is_folded:
            assert got.raw == request.body, number
            # Nothing is left unfolded without a reason.
            assert receipt["reason"] or not has_fold(request), number


@pytest.mark.parametrize("name", [path.name for path in RECORDINGS])
def test_folds_and_left_out_results_of_a_recorded_day_stay_in_later_requests(
    name: str, exchanges: dict[str, list[Exchange]]
) -> None:
    sent = [(replayed.request, got) for replayed, got in exchanges[name] if has_fold(replayed.request)]
    assert all(b"alpha line 300" not in got.raw for _, got in sent)
    # Gemini CLI shortens old results itself at the end of its day.
    stubs = [got.raw.count(STUB) for request, got in sent if request.is_after_pause and MASKED not in request.body]
    assert min(stubs) >= 3
    assert all(STUB not in got.raw for request, got in sent if not request.is_after_pause)


def has_fold(request: RecordedRequest) -> bool:
    """Whether the model of this conversation has folded its reading of the first file."""
    return b"folded_at" in request.body


def test_a_recording_has_nothing_that_a_programs_makers_wrote() -> None:
    for path in RECORDINGS:
        for request in load(path):
            assert prose_in(json.loads(request.body)) == [], path


def prose_in(value: object) -> list[str]:
    """Texts of several words that are neither filler nor the day's own."""
    if isinstance(value, dict):
        return [
            text for name, member in value.items() if name not in ("input", "arguments") for text in prose_in(member)
        ]
    if isinstance(value, list):
        return [text for member in value for text in prose_in(member)]
    lines = value.split("\n") if isinstance(value, str) else []
    return [line for line in lines if len(line) > 40 and " the " in line.lower()]
