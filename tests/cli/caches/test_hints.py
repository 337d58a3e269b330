"""What a mistake with caches gives: an error that is true, and a command that can be typed as it is."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from contextfold import open_cache
from contextfold.common.tokens import estimate
from tests.support.machine import Call, write_files


@pytest.fixture
def docs(tmp_path: Path, call: Call) -> Path:
    folder = write_files(
        tmp_path / "docs", {"README.md": "# Folding\n\nA fold is a summary.\n\n## Why\n\nIt is short.\n"}
    )
    assert call("build", folder).code == 0
    return folder


@pytest.fixture
def cache(docs: Path) -> Path:
    return docs / ".context-cache"


def test_a_question_may_be_typed_without_quotes(cache: Path, call: Call) -> None:
    quoted = call("ask", "what is a fold", "--json", "--cache", cache)
    assert call("ask", "what", "is", "--json", "--cache", cache, "a", "fold") == quoted
    assert json.loads(quoted.out)["selection"]["query"] == "what is a fold"


def test_a_question_with_too_many_terms_says_that_it_was_cut(cache: Path, call: Call) -> None:
    words = [f"z{chr(97 + n // 26)}k{chr(97 + n % 26)}k" for n in range(129)]
    ran = call("ask", *words, "--cache", cache, "--json")
    assert json.loads(ran.out)["selection"]["query_cut"] is True
    assert "128 terms" in call("ask", *words, "--cache", cache).out.decode()
    ran = call("ask", *words[:128], "--cache", cache, "--json")
    assert json.loads(ran.out)["selection"]["query_cut"] is False


@pytest.mark.parametrize("option", ["--cache", "--cache-root"])
def test_an_empty_path_is_named_as_such(option: str, docs: Path, call: Call) -> None:
    ran = call("ask", "fold", option, "")
    assert (ran.code, ran.out) == (1, b"")
    assert f"{option} is empty" in ran.err
    ran = call("build", docs, "--cache", "")
    assert ran.code == 6
    assert "empty" in ran.err


def test_the_command_that_rebuilds_a_damaged_default_cache_works_as_printed(
    docs: Path, cache: Path, call: Call
) -> None:
    damage(cache)
    ran = call("ask", "fold", "--cache", cache)
    assert ran.code == 5
    command = ran.err.split("`")[1].split()
    assert command[0] == "context"
    assert call(*command[1:]).code == 0
    assert call("ask", "fold", "--cache", cache).code == 0


@pytest.mark.parametrize(
    ("form", "hint"), [(["DIR"], "build DIR --cache"), (["--sources", "DIR"], "build --sources DIR --cache")]
)
def test_the_command_that_rebuilds_another_cache_has_the_form_that_built_it(
    form: list[str], hint: str, docs: Path, tmp_path: Path, call: Call
) -> None:
    cache = tmp_path / "a cache"
    assert call("build", *[str(docs) if word == "DIR" else word for word in form], "--cache", cache).code == 0
    damage(cache)
    for command, code in ((["ask", "fold"], 5), (["verify"], 0), (["get", "readme.md"], 5)):
        ran = call(*command, "--cache", cache)
        assert ran.code == code
        assert f"`context {hint} '{cache}' --force`" in ran.err


def test_a_resolve_from_other_documents_than_those_beside_the_cache_is_noted(
    docs: Path, cache: Path, tmp_path: Path, call: Call
) -> None:
    question = ["resolve", "--query", "fold", "--budget", "4000"]
    assert call(*question, "--cache", cache).err == ""
    # As in a fresh clone of a repository that has the cache: new timestamps, the same contents.
    clone = tmp_path / "clone"
    shutil.copytree(docs, clone)
    before = call(*question, "--cache", clone / ".context-cache")
    assert before.err == ""
    (clone / "README.md").write_text("# Folding\n\nA fold is something else.\n")
    after = call(*question, "--cache", clone / ".context-cache")
    assert (after.code, after.out) == (0, before.out)
    assert after.err.startswith("note: the cache is not of the documents beside it: readme.md ")
    assert f"`context build {clone}`" in after.err
    (clone / "README.md").unlink()
    assert "readme.md" in call(*question, "--cache", clone / ".context-cache").err


def test_an_answer_itself_says_which_documents_have_changed(docs: Path, cache: Path, call: Call) -> None:
    (docs / "README.md").write_text("# Folding\n\nA fold is something else.\n")
    line = "[changed since this cache was built: readme.md; build it again]\n"
    asked = call("ask", "fold", "--cache", cache).out.decode()
    assert asked.endswith(line)
    # The line is part of the budget.
    small = open_cache(cache).ask("fold", 50)
    assert small.selection.sections_selected == 1
    assert estimate(small.to_text()) <= small.selection.tokens_used <= 50
    assert small.notes[0].startswith("[changed since")
    assert call("get", "readme.md", "--cache", cache).out.decode().endswith(line.replace(": readme.md", ""))
    as_json = json.loads(call("ask", "fold", "--cache", cache, "--json").out)
    assert as_json["selection"]["outdated"] == ["readme.md"]
    assert json.loads(call("get", "readme.md", "--cache", cache, "--json").out)["outdated"] is True


def test_only_the_outdated_documents_of_several_caches_are_named(docs: Path, tmp_path: Path, call: Call) -> None:
    page = "<title>T</title><h1>Fold</h1><p>x"
    other = write_files(tmp_path / "pages", {"a.html": page, "b.md": "# Fold\n"})
    call("build", other)
    caches = ["--cache", docs, "--cache", other]
    assert b"[changed since" not in call("ask", "fold", *caches).out
    write_files(other, {"a.html": page + "y"})
    assert b"[changed since this cache was built: pages:a.html; build it again]\n" in call("ask", "fold", *caches).out
    assert b"[changed since" in call("get", "pages:a.html", *caches).out
    assert b"[changed since" not in call("get", "docs:readme.md", *caches).out


def damage(cache: Path) -> None:
    (cache / "pack" / "index.sqlite").write_bytes(b"x")


@pytest.mark.parametrize("name", ["README.md", "./README.md", "readme.md"])
def test_get_takes_a_path_as_people_type_it(name: str, cache: Path, call: Call) -> None:
    assert json.loads(call("get", "--json", name, "--cache", cache).out)["document"]["id"] == "readme.md"


@pytest.mark.parametrize(
    "words",
    [
        ["README.md", "--section", "why"],
        ["README.md", "--section", "Folding › Why"],
        ["README.md", "--section", "readme.md › Folding › Why"],
        ["README.md", "--section", "docs:readme.md › Folding › Why (lines 5-7)"],
        ["README.md", "--section", "Why (lines 5-7)"],
        ["README.md › Folding › Why (lines 5-7)"],
    ],
)
def test_get_takes_a_breadcrumb_as_it_is_printed(words: list[str], cache: Path, call: Call) -> None:
    (found,) = json.loads(call("get", "--json", *words, "--cache", cache).out)["document"]["sections"]
    assert found["content"].startswith("## Why")


def test_every_breadcrumb_of_an_answer_gives_the_lines_that_it_names(tmp_path: Path, call: Call) -> None:
    parts = "".join(f"## Part {number}\n\n{'rollback' if number in (1, 2, 5) else 'other'}\n\n" for number in range(7))
    write_files(tmp_path / "docs", {"a.md": f"# A\n\n{parts}", "plain.txt": "rollback\n\nand more\n"})
    assert call("build", tmp_path / "docs", "--cache", tmp_path / "cache").code == 0
    asked = call("ask", "rollback", "--cache", tmp_path / "cache").out.decode()
    breadcrumbs = re.findall(r"^(.*) \(lines (\d+)-(\d+)\)$", asked, re.MULTILINE)
    assert sorted(breadcrumbs) == [("a.md › A", "7", "14"), ("plain.txt", "1", "3"), ("›", "23", "26")]
    for place, first, last in breadcrumbs:
        breadcrumb = f"{place} (lines {first}-{last})"
        words = ["a.md", "--section", breadcrumb] if place == "›" else [breadcrumb]
        got = call("get", *words, "--cache", tmp_path / "cache", "--json").out
        lines = [part["lines"] for part in json.loads(got)["document"]["sections"]]
        assert (lines[0][0], lines[-1][1]) == (int(first), int(last))
    assert call("get", "a.md (lines 900-901)", "--cache", tmp_path / "cache").code == 2


def test_an_error_repeats_only_the_beginning_of_a_long_id(cache: Path, call: Call) -> None:
    ran = call("get", "a" * 10_000, "--cache", cache)
    assert ran.code == 2
    assert len(ran.err) < 500


def test_the_folder_of_the_documents_names_its_default_cache(tmp_path: Path, call: Call) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "deploy"})
    assert call("build", docs).code == 0
    ran = call("ask", "deploy", "--cache", docs, "--json")
    assert [document["id"] for document in json.loads(ran.out)["documents"]] == ["a.md"]


def test_a_folder_that_is_no_cache_is_not_to_be_replaced(tmp_path: Path, call: Call) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "deploy"})
    ran = call("ask", "deploy", "--cache", docs)
    assert ran.code == 5
    assert "--force" not in ran.err


def test_a_build_names_the_options_that_it_remembers(tmp_path: Path, call: Call) -> None:
    docs = write_files(tmp_path / "docs", {"a.md": "deploy", "b c.md": "x"})
    assert "remembers" not in call("build", docs, "--exclude", "b c.md").err
    assert "--exclude 'b c.md'" in call("build", docs).err
    assert "remembers" not in call("build", docs, "--defaults").err


def test_get_has_the_counters_of_ask(cache: Path, call: Call) -> None:
    assert (
        json.loads(call("get", "--json", "readme.md", "--cache", cache, "--counter", "estimate-1").out)["counter"]
        == "estimate-1"
    )
    assert call("get", "readme.md", "--cache", cache, "--counter", "abacus").code == 1


def test_the_order_of_the_caches_does_not_change_the_answer(tmp_path: Path, call: Call) -> None:
    for name in ("one", "two"):
        folder = write_files(tmp_path / name, {"a.md": "# Same\n\nrollback\n", f"{name}.md": f"rollback {name}\n"})
        assert call("build", folder).code == 0
    caches = [tmp_path / name / ".context-cache" for name in ("one", "two")]
    forth = call("ask", "rollback", "--json", "--cache", caches[0], "--cache", caches[1])
    assert forth == call("ask", "rollback", "--json", "--cache", caches[1], "--cache", caches[0])
    assert json.loads(forth.out)["documents"]


def test_the_lines_of_a_breadcrumb_choose_among_sections_with_the_same_headings(tmp_path: Path, call: Call) -> None:
    write_files(tmp_path / "docs", {"a.md": "# A\n\n## Notes\n\nfirst\n\n## Other\n\nx\n\n## Notes\n\nsecond\n"})
    assert call("build", tmp_path / "docs", "--cache", tmp_path / "cache").code == 0
    section = "a.md › A › Notes (lines 11-13)"
    result = call("get", "a.md", "--section", section, "--cache", tmp_path / "cache", "--json")
    assert [part["lines"] for part in json.loads(result.out)["document"]["sections"]] == [[11, 13]]
