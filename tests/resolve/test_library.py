"""contextfold as a library: typed values, whose JSON is the stdout of the command."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import contextfold
from contextfold import ContextError, open_cache
from contextfold.errors import BudgetInvalid, CacheInvalid, CacheMissing, QueryInvalid
from tests.support.machine import run_command


def test_the_json_of_a_result_is_the_stdout_of_the_command(cache: Path) -> None:
    result = open_cache(cache).resolve("guide", 4000)
    ran = run_command("resolve", "--cache", cache, "--query", "guide", "--budget", "4000")
    assert result.to_json().encode() == ran.out
    pretty = run_command("resolve", "--cache", cache, "--query", "guide", "--budget", "4000", "--format", "pretty")
    assert result.to_json(pretty=True).encode() == pretty.out
    first = result.documents[0]
    assert (first.id, first.score, first.why.term_matches, first.why.total_words) == ("security.md", 0.25, 1, 4)
    assert result.selection.documents_considered == 3


def test_inspect_and_verify_return_typed_values(cache: Path) -> None:
    opened = open_cache(cache)
    assert opened.inspect().to_json().encode() == run_command("inspect", "--cache", cache).out
    assert opened.verify().faults == ()
    (cache / "documents" / "19835fc46fd4.json").write_text("broken")
    (fault,) = opened.verify().faults
    assert (fault.file, fault.problem) == ("documents/19835fc46fd4.json", "is not JSON in UTF-8")


@pytest.mark.parametrize("path", [str, Path, lambda path: str(path).encode()])
def test_a_path_may_be_str_bytes_or_a_path_object(path: type, cache: Path) -> None:
    assert open_cache(path(cache)).resolve("guide", 9).selection.documents_considered == 3


def test_failures_are_context_errors_with_frozen_codes(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(CacheMissing) as missing:
        open_cache(tmp_path / "nowhere")
    assert isinstance(missing.value, ContextError)
    assert (missing.value.code, missing.value.message) == ("cache_missing", "Cache does not exist")
    opened = open_cache(cache)
    with pytest.raises(QueryInvalid):
        opened.resolve("\ud800", 5)
    for budget in (-1, 2**63, True, 1.0, "5", None):
        with pytest.raises(BudgetInvalid):
            opened.resolve("q", budget)  # type: ignore[arg-type]
    (cache / "index.json").unlink()
    with pytest.raises(CacheInvalid):
        opened.resolve("q", 5)


def test_values_are_immutable_comparable_and_picklable(cache: Path) -> None:
    result = open_cache(cache).resolve("guide", 4000)
    with pytest.raises(AttributeError):
        result.selection.budget = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(result)) == result
    assert copy.deepcopy(result) == result
    assert "documents_considered=3" in repr(result.selection)
    assert result.selection._replace(budget=1).budget == 1
    with pytest.raises(TypeError):
        type(result.selection)("q")  # type: ignore[call-arg]


def test_one_cache_can_be_used_by_many_threads(cache: Path) -> None:
    opened = open_cache(cache)
    expected = opened.resolve("guide", 4000)
    with ThreadPoolExecutor(8) as pool:
        assert all(answer == expected for answer in pool.map(lambda _: opened.resolve("guide", 4000), range(64)))


def test_the_package_exports_exactly_the_public_names() -> None:
    assert sorted(contextfold.__all__) == [
        "AskResult",
        "BuildReport",
        "Cache",
        "ContextError",
        "GetResult",
        "SelectionResult",
        "__version__",
        "ask_caches",
        "build",
        "open_cache",
    ]
    assert set(contextfold.__all__) <= set(dir(contextfold))
    for name in contextfold.__all__:
        assert getattr(contextfold, name)
    with pytest.raises(AttributeError):
        _ = contextfold.nothing
