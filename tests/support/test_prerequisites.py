"""A test with a missing prerequisite is skipped with a reason, or fails where no test may be skipped."""

from __future__ import annotations

import pytest

from tests.support import prerequisites
from tests.support.prerequisites import Prerequisite, require

MISSING = Prerequisite(False, "no such thing here: install it")


def test_a_missing_prerequisite_skips_the_test_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerequisites, "STRICT", False)
    with pytest.raises(pytest.skip.Exception, match=MISSING.missing_message):
        require(MISSING)


def test_a_missing_prerequisite_fails_the_test_in_strict_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerequisites, "STRICT", True)
    with pytest.raises(pytest.fail.Exception, match=MISSING.missing_message):
        require(MISSING)


def test_an_available_prerequisite_neither_skips_nor_fails() -> None:
    require(Prerequisite(True, "never"))
