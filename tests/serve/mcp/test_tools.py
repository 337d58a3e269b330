"""The resolve tools over stdio: arguments, answers, errors, and the names of caches."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from contextfold.errors import StorageFailed
from contextfold.resolve.service import CacheRoot
from contextfold.serve.mcp.resolve_tools import RESOLVE_TOOLS, run_resolve_tool
from tests.serve.stdio_client import (
    ASK,
    GET,
    INITIALIZE,
    RESOLVE,
    Server,
    after_handshake,
    call,
    error_code_of,
    request,
    text_of,
)
from tests.support.machine import as_nobody, run_command, write_files

# The first item replaces valid arguments, the second is the code of the expected error.
BadCall = tuple[dict[str, object], str]
BAD_BUDGETS: tuple[object, ...] = (None, "5", True, 5.0, -1, 2**63, 10**4000, [])


def bad_values(code: str, name: str, *values: object) -> list[BadCall]:
    return [({name: value}, code) for value in values]


class TestTools:
    def test_the_frozen_tools_have_their_frozen_descriptions(self, root: Path) -> None:
        (answer,) = after_handshake(root, request("tools/list"))
        tools = answer["result"]["tools"]
        assert [tool["description"] for tool in tools[:3]] == [
            "Resolve a natural-language query against a pre-built context cache and return a deterministic, "
            "explainable set of documents within a token budget.",
            "List available context caches.",
            "Inspect cache state and metadata.",
        ]

    def test_resolve_returns_the_output_of_the_command(self, root: Path) -> None:
        queries = ["guide", "", "é Σ 😀", "\u0000", 'a"b\\c\nd', "deployment security"]
        cases = list(product(queries, [0, 7, 4000, 2**63 - 1]))
        lines = [
            call("context.resolve", {"cache": "docs", "query": query, "budget": budget}) for query, budget in cases
        ]
        for (query, budget), answer in zip(cases, after_handshake(root, *lines), strict=True):
            assert answer["result"]["isError"] is False, (query, budget)
            # A command line cannot contain this character.
            if "\0" in query:
                assert json.loads(text_of(answer))["selection"]["query"] == query
                continue
            result = run_command("resolve", "--cache", root / "docs", "--query", query.encode(), "--budget", budget)
            assert text_of(answer).encode() == result.out, (query, budget)

    def test_each_bad_argument_has_its_error_code(self, root: Path) -> None:
        cases: list[BadCall] = [
            *bad_values("cache_missing", "cache", None, 5, "", ".", "nowhere", "\ud800", "n" * 300, "a/" * 400_000),
            *bad_values("invalid_query", "query", None, 5, ["q"], "\ud800", "ok \udfff"),
            *bad_values("invalid_budget", "budget", *BAD_BUDGETS),
            ({"cache": 5, "query": 5, "budget": -1}, "cache_missing"),
            ({"query": 5, "budget": -1}, "invalid_query"),
            ({"cache": "nowhere", "query": 5}, "invalid_query"),
            ({"cache": "nowhere", "budget": -1}, "invalid_budget"),
        ]
        answers = after_handshake(
            root, *(call("context.resolve", {**RESOLVE, **bad_arguments}) for bad_arguments, _ in cases)
        )
        for (bad_arguments, code), answer in zip(cases, answers, strict=True):
            assert error_code_of(answer) == code, str(bad_arguments)[:100]

    @pytest.mark.parametrize(
        ("missing", "code"), [("cache", "cache_missing"), ("query", "invalid_query"), ("budget", "invalid_budget")]
    )
    def test_each_missing_argument_has_its_error_code(self, missing: str, code: str, root: Path) -> None:
        arguments = {name: value for name, value in RESOLVE.items() if name != missing}
        assert error_code_of(after_handshake(root, call("context.resolve", arguments))[0]) == code

    def test_a_budget_with_too_many_digits_is_invalid(self, root: Path) -> None:
        line = call("context.resolve", RESOLVE).replace(b"4000", b"9" * 900_000)
        assert error_code_of(after_handshake(root, line)[0]) == "invalid_budget"

    def test_error_messages_are_the_canonical_ones_without_paths(self, root: Path) -> None:
        (root / "docs" / "index.json").unlink()
        (answer,) = after_handshake(root, call("context.resolve", RESOLVE))
        assert text_of(answer) == '{"error":{"code":"cache_invalid","message":"Cache exists but is invalid"}}\n'

    def test_a_call_builds_and_repairs_nothing(self, root: Path) -> None:
        (root / "docs" / "index.json").unlink()
        before = sorted(str(path) for path in root.rglob("*"))
        after_handshake(root, call("context.resolve", RESOLVE), call("context.resolve", {**RESOLVE, "cache": "new"}))
        assert sorted(str(path) for path in root.rglob("*")) == before


class TestNames:
    def test_bad_arguments_are_refused_before_the_disk_is_read(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise AssertionError("the disk was touched")

        tools = {tool.name: tool for tool in RESOLVE_TOOLS}
        valid: dict[str, dict[str, object]] = {
            "context.resolve": RESOLVE,
            "context.ask": ASK,
            "context.get": GET,
            "context.inspect_cache": {"cache": "docs"},
        }
        names = bad_values("cache_missing", "cache", "../x", "/x", "a\0")
        query, budget = bad_values("invalid_query", "query", 5), bad_values("invalid_budget", "budget", -1)
        bad_calls: dict[str, list[BadCall]] = {
            "context.resolve": [*names, *query, *budget],
            "context.ask": [*names, *query, *budget, *bad_values("invalid_query", "unit", "x")],
            "context.get": [
                *names,
                *budget,
                *bad_values("invalid_query", "id", 5),
                *bad_values("invalid_query", "lines", "x"),
            ],
            "context.inspect_cache": names,
        }

        def kind(name: str, arguments: dict[str, object]) -> str:
            return run_resolve_tool(tools[name], CacheRoot(b"/x"), {**valid[name], **arguments}).kind

        # The first call of a tool imports its modules, which reads the disk.
        for name in valid:
            kind(name, {})
        # Only this block is patched, because pytest itself reads files to report a failure.
        with monkeypatch.context() as patch:
            for name in ("open", "stat", "lstat", "scandir", "listdir", "readlink"):
                patch.setattr(os, name, fail)
            patch.setattr(os.path, "realpath", fail)
            with_valid_arguments = {kind(name, {}) for name in valid}
            refused = [kind(name, arguments) for name, listed in bad_calls.items() for arguments, _ in listed]
        assert with_valid_arguments == {"internal_error"}
        assert refused == [code for listed in bad_calls.values() for _, code in listed]

    def test_no_cache_name_leads_out_of_the_root(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        os.rename(root / "docs", tmp_path / "elsewhere" / "docs")
        (root / "link-out").symlink_to(tmp_path / "elsewhere")
        (root / "docs").symlink_to(tmp_path / "elsewhere" / "docs")
        (root / "file").write_text("x")
        names = [
            "..",
            "../docs",
            "docs/..",
            "docs/../docs",
            "/etc",
            "/{root}/docs",
            "\\docs",
            "a..b",
            "docs\0",
            "\0",
            "link-out",
            "link-out/docs",
            "file",
        ]
        others = {"context.resolve": RESOLVE, "context.ask": ASK, "context.get": GET, "context.inspect_cache": {}}
        cases = [(tool, name.format(root=root)) for tool, name in product(others, [*names, "docs"])]
        answers = after_handshake(root, *(call(tool, {**others[tool], "cache": name}) for tool, name in cases))
        for case, answer in zip(cases, answers, strict=True):
            assert error_code_of(answer) == "cache_missing", case

    def test_links_inside_the_root_and_subfolders_are_caches(self, root: Path) -> None:
        (root / "group").mkdir()
        os.rename(root / "docs", root / "group" / "docs")
        (root / "current").symlink_to(root / "group" / "docs")
        for name in ("group/docs", "current", "./current", "group//docs/"):
            (answer,) = after_handshake(root, call("context.resolve", {**RESOLVE, "cache": name}))
            assert answer["result"]["isError"] is False

    def test_the_root_may_be_a_link(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(root)
        (answer,) = after_handshake(tmp_path / "link", call("context.resolve", RESOLVE))
        assert answer["result"]["isError"] is False


class TestListAndInspect:
    def test_caches_are_listed_by_name_in_byte_order(self, root: Path) -> None:
        for name in ("é", "Z", "a", ".hidden", "a b", "😀"):
            (root / name).mkdir()
        (root / "file").write_text("x")
        (root / "link").symlink_to(root / "docs")
        (root / "a" / "manifest.json").symlink_to(root / "docs" / "manifest.json")
        (root / "Z" / "manifest.json").mkdir()
        (root / "broken").mkdir()
        # Listing does not read the manifest.
        (root / "broken" / "manifest.json").write_text("nope")
        for unnameable in (b"bad\xff", b"a..b", b"\\x"):
            os.mkdir(os.fsencode(root) + b"/" + unnameable)
        (answer,) = after_handshake(root, call("context.list_caches"))
        names = [".hidden", "Z", "a", "a b", "broken", "docs", "é", "😀"]
        expected = {"caches": [{"path": name, "has_manifest": name in ("broken", "docs")} for name in names]}
        assert text_of(answer) == json.dumps(expected, separators=(",", ":"), ensure_ascii=False)

    def test_every_listed_name_can_be_resolved(self, root: Path) -> None:
        for name in ("é", "a b", ".hidden", "~", "$HOME", "*"):
            os.rename(root / os.listdir(root)[0], root / name)
            (listed,) = json.loads(text_of(after_handshake(root, call("context.list_caches"))[0]))["caches"]
            (answer,) = after_handshake(root, call("context.resolve", {**RESOLVE, "cache": listed["path"]}))
            assert answer["result"]["isError"] is False

    @pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
    def test_a_file_without_read_permission_is_an_io_error(self, root: Path, tmp_path: Path) -> None:
        questions = {
            "docs/manifest.json": call("context.inspect_cache", {"cache": "docs"}),
            "docs/index.json": call("context.resolve", RESOLVE),
            ".": call("context.list_caches"),
        }
        for file, request_line in questions.items():
            (root / file).chmod(0)
            argv = ("serve", "--stdio", "--cache-root", str(root))
            result = as_nobody(tmp_path, *argv, text_input=(INITIALIZE + request_line).decode())
            assert error_code_of(json.loads(result.stdout.splitlines()[1])) == "io_error"
            (root / file).chmod(0o755)

    def test_the_folders_of_a_running_build_are_no_caches(self, root: Path) -> None:
        for suffix in (".contextfold-building", ".contextfold-replaced"):
            (root / f".docs{suffix}").mkdir(exist_ok=True)
            (answer,) = after_handshake(root, call("context.resolve", {**RESOLVE, "cache": f".docs{suffix}"}))
            assert error_code_of(answer) == "cache_missing"
            (answer,) = after_handshake(root, call("context.resolve", {**RESOLVE, "cache": f".docs{suffix}/."}))
            assert error_code_of(answer) == "cache_missing"
        (answer,) = after_handshake(root, call("context.list_caches"))
        assert [cache["path"] for cache in json.loads(text_of(answer))["caches"]] == ["docs"]

    def test_a_missing_root_is_an_io_error_when_listing_only(self, tmp_path: Path) -> None:
        listed, resolved = after_handshake(
            tmp_path / "nowhere", call("context.list_caches"), call("context.resolve", RESOLVE)
        )
        assert (error_code_of(listed), error_code_of(resolved)) == ("io_error", "cache_missing")
        with pytest.raises(StorageFailed) as raised:
            CacheRoot(os.fsencode(tmp_path / "nowhere")).list()
        assert "nowhere does not exist" in raised.value.reason

    def test_inspect_returns_version_count_size_and_validity(self, root: Path) -> None:
        (root / "docs" / "link").symlink_to("manifest.json")
        (answer,) = after_handshake(root, call("context.inspect_cache", {"cache": "docs"}))
        inspected = json.loads(run_command("inspect", "--cache", root / "docs").out)
        size = sum((root / "docs" / name).stat().st_size for name in ("manifest.json", "index.json"))
        expected = {
            "cache_version": inspected["cache_version"],
            "document_count": 3,
            "total_bytes": size,
            "valid": True,
        }
        assert text_of(answer) == json.dumps(expected, separators=(",", ":"))

    @pytest.mark.parametrize("manifest", [None, "", "nope", "{}", "[]", '{"cache_version":"x"}'])
    def test_a_cache_with_an_unreadable_manifest_is_invalid(self, manifest: str | None, root: Path) -> None:
        (root / "docs" / "manifest.json").unlink()
        if manifest is not None:
            (root / "docs" / "manifest.json").write_text(manifest)
        (answer,) = after_handshake(root, call("context.inspect_cache", {"cache": "docs"}))
        assert answer["result"]["isError"] is False
        size = sum(path.stat().st_size for path in (root / "docs").iterdir() if path.is_file())
        version = "x" if manifest and '"x"' in manifest else ""
        expected = {"cache_version": version, "document_count": 0, "total_bytes": size, "valid": False}
        assert json.loads(text_of(answer)) == expected

    def test_a_damaged_cache_is_invalid(self, root: Path) -> None:
        (root / "docs" / "documents" / "19835fc46fd4.json").unlink()
        (answer,) = after_handshake(root, call("context.inspect_cache", {"cache": "docs"}))
        inspected = json.loads(text_of(answer))
        assert (inspected["valid"], inspected["document_count"]) == (False, 3)

    @pytest.mark.parametrize("bad_arguments", [{}, {"cache": 5}, {"cache": "nowhere"}, {"cache": ".."}])
    def test_inspecting_an_unknown_cache_is_cache_missing(self, bad_arguments: dict[str, object], root: Path) -> None:
        assert error_code_of(after_handshake(root, call("context.inspect_cache", bad_arguments))[0]) == "cache_missing"


# Each form of an answer, as an argument of a tool and as an option of its command.
FORMS = pytest.mark.parametrize(("form", "option"), [({}, []), ({"format": "json"}, ["--json"])])


class TestAskAndGet:
    """The tools and the commands behave the same: every answer is the command's output, byte for byte."""

    @FORMS
    @pytest.mark.parametrize("unit", ["section", "document"])
    def test_ask_returns_the_output_of_the_command(
        self, unit: str, form: dict[str, str], option: list[str], root: Path
    ) -> None:
        queries = ["guide", "", "é Σ 😀", 'a"b\\c\nd', "deployment security", "nothing-like-it"]
        cases = list(product(queries, [0, 40, 4000, 2**63 - 1]))
        arguments = [{"cache": "docs", "query": query, "unit": unit, "budget": budget} for query, budget in cases]
        answers = after_handshake(root, *(call("context.ask", {**each, **form}) for each in arguments))
        for (query, budget), answer in zip(cases, answers, strict=True):
            result = run_command(
                "ask", query.encode(), "--cache", root / "docs", "--unit", unit, "--budget", budget, *option
            )
            assert (result.code, result.out) == (0, text_of(answer).encode()), (query, budget)
            assert answer["result"]["isError"] is False

    def test_ask_has_the_commands_defaults(self, root: Path) -> None:
        (answer,) = after_handshake(root, call("context.ask", {"query": "guide"}))
        assert text_of(answer).encode() == run_command("ask", "guide", "--cache-root", root).out
        assert text_of(answer).encode() == run_command("ask", "guide", "--cache", root / "docs").out

    def test_without_a_name_all_caches_are_searched_and_ids_have_their_names(self, root: Path, tmp_path: Path) -> None:
        more = write_files(tmp_path / "more", {"tour.md": "A guide to the town."})
        assert run_command("build", "--sources", more, "--cache", root / "more").code == 0
        (root / "no-cache").mkdir()
        (answer,) = after_handshake(root, call("context.ask", {"query": "guide", "format": "json"}))
        document = {document["id"] for document in json.loads(text_of(answer))["documents"]}
        assert document == {"docs:deployment.md", "docs:security.md", "more:tour.md"}
        assert text_of(answer).encode() == run_command("ask", "guide", "--cache-root", root, "--json").out

    def test_without_a_name_an_empty_root_is_cache_missing_and_an_absent_one_an_io_error(self, tmp_path: Path) -> None:
        question = call("context.ask", {"query": "guide"})
        (tmp_path / "empty").mkdir()
        assert error_code_of(after_handshake(tmp_path / "empty", question)[0]) == "cache_missing"
        assert error_code_of(after_handshake(tmp_path / "absent", question)[0]) == "io_error"

    @FORMS
    def test_get_returns_the_output_of_the_command(
        self, form: dict[str, str], option: list[str], root: Path, sources: Path
    ) -> None:
        write_files(sources, {"steps.md": "# Deploying\n\nFirst.\n\n## Roll back\n\nUndo.\n\n## Canary\n\nWatch.\n"})
        assert run_command("build", "--sources", sources, "--cache", root / "docs", "--force").code == 0
        parts: list[dict[str, object]] = [
            {},
            {"section": "Roll back"},
            {"section": "deploying › roll back"},
            {"section": "Roll back", "around": 1},
            {"lines": "1"},
            {"lines": "1-7", "around": 100},
            {"budget": 0},
            {"budget": 30},
            {"budget": 2**63 - 1},
            {"id": "notes/empty.md"},
            {"id": "notes/empty.md", "around": 1},
        ]
        request_line = [{"cache": "docs", "id": "steps.md", **part} for part in parts]
        answers = after_handshake(root, *(call("context.get", {**each, **form}) for each in request_line))
        for part, arguments, answer in zip(parts, request_line, answers, strict=True):
            options = [str(word) for key, value in part.items() if key != "id" for word in (f"--{key}", value)]
            result = run_command("get", str(arguments["id"]), "--cache", root / "docs", *options, *option)
            assert (result.code, result.out) == (0, text_of(answer).encode()), part
            assert answer["result"]["isError"] is False

    def test_get_reads_the_documents_that_ask_returns(self, root: Path) -> None:
        as_json = {"format": "json"}
        (answer,) = after_handshake(root, call("context.ask", {**ASK, **as_json}))
        documents = json.loads(text_of(answer))["documents"]
        assert len(documents) == 2
        answers = after_handshake(
            root, *(call("context.get", {**GET, **as_json, "id": document["id"]}) for document in documents)
        )
        for document, answer in zip(documents, answers, strict=True):
            read = json.loads(text_of(answer))["document"]
            assert (read["id"], read["version"]) == (document["id"], document["version"])
            contents = [section["content"] for section in read["sections"]]
            assert all(section["content"] in contents for section in document["sections"])

    def test_each_bad_argument_of_ask_has_its_error_code(self, root: Path) -> None:
        cases: list[BadCall] = [
            *bad_values("cache_missing", "cache", 5, "", ".", "nowhere", "\ud800", [], "n" * 5000),
            *bad_values("invalid_query", "query", None, 5, ["q"], {}, "\ud800", "ok \udfff"),
            *bad_values("invalid_query", "format", None, 5, "", "xml", []),
            *bad_values("invalid_query", "unit", None, 5, "", "page", [], {}, "\ud800"),
            *bad_values("invalid_budget", "budget", *BAD_BUDGETS),
            ({"cache": "..", "query": 5, "budget": -1}, "cache_missing"),
            ({"cache": "nowhere", "query": 5}, "invalid_query"),
            ({"cache": "nowhere", "budget": -1}, "invalid_budget"),
            ({"cache": "nowhere", "unit": "page"}, "invalid_query"),
        ]
        answers = after_handshake(root, *(call("context.ask", {**ASK, **bad_arguments}) for bad_arguments, _ in cases))
        assert [error_code_of(answer) for answer in answers] == [code for _, code in cases]
        without_query = after_handshake(root, call("context.ask", {"cache": "docs"}))
        assert error_code_of(without_query[0]) == "invalid_query"

    def test_each_bad_argument_of_get_has_its_error_code(self, root: Path) -> None:
        cases: list[BadCall] = [
            *bad_values("cache_missing", "cache", 5, "", ".", "nowhere", "\ud800", []),
            *bad_values("invalid_query", "id", None, 5, [], "", "absent.md", "a\0", "\ud800", "../x"),
            *bad_values("invalid_query", "format", None, 5, "", "xml", []),
            *bad_values("invalid_query", "section", 5, [], "", "Absent", "\ud800"),
            *bad_values("invalid_query", "lines", 5, [], "", "0", "9-1", "-1", "1-", "900", "9" * 5000),
            *bad_values("invalid_query", "around", None, True, -1, 1.0, "1", 101, 10**4000),
            *bad_values("invalid_budget", "budget", *BAD_BUDGETS),
            ({"section": "Guide", "lines": "1"}, "invalid_query"),
            ({"cache": "..", "id": 5, "budget": -1}, "cache_missing"),
            ({"cache": "nowhere", "id": 5}, "invalid_query"),
            ({"cache": "nowhere", "budget": -1}, "invalid_budget"),
        ]
        answers = after_handshake(root, *(call("context.get", {**GET, **bad_arguments}) for bad_arguments, _ in cases))
        assert [error_code_of(answer) for answer in answers] == [code for _, code in cases]
        (without_id,) = after_handshake(root, call("context.get", {"cache": "docs"}))
        assert error_code_of(without_id) == "invalid_query"

    def test_half_a_surrogate_pair_does_not_match_a_question_mark(self, root: Path, sources: Path) -> None:
        write_files(sources, {"?.md": "guide"})
        assert run_command("build", "--sources", sources, "--cache", root / "docs", "--force").code == 0
        with_question_mark, with_half_a_pair = after_handshake(
            root, *(call("context.get", {"cache": "docs", "id": arguments}) for arguments in ("?.md", "\ud800.md"))
        )
        assert with_question_mark["result"]["isError"] is False
        assert error_code_of(with_half_a_pair) == "invalid_query"


class TestChanges:
    def test_a_change_of_the_cache_is_noticed_before_the_next_answer(self, root: Path, sources: Path) -> None:
        def answer_of_new_server(arguments: dict[str, object]) -> Any:
            return after_handshake(root, call("context.resolve", arguments))[0]

        with Server(root) as server:
            server.ask(INITIALIZE)
            question = call("context.resolve", RESOLVE)
            assert server.ask(question) == answer_of_new_server(RESOLVE)
            document = root / "docs" / "documents" / "e3b0c44298fc.json"
            before = document.read_bytes()
            document.write_bytes(before.replace(b'"content":""', b'"content":"x"'))
            assert server.ask(question) == answer_of_new_server(RESOLVE)
            assert error_code_of(server.ask(question)) == "cache_invalid"
            document.write_bytes(before)
            assert server.ask(question) == answer_of_new_server(RESOLVE)
            write_files(sources, {"new.md": "guide guide"})
            assert run_command("build", "--sources", sources, "--cache", root / "docs", "--force").code == 0
            answer = server.ask(question)
            assert answer == answer_of_new_server(RESOLVE)
            assert json.loads(text_of(answer))["documents"][0]["id"] == "new.md"
            subprocess.run(["rm", "-r", root / "docs"], check=True)
            assert error_code_of(server.ask(question)) == "cache_missing"
