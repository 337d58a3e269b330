"""The errors of `context.ask`, `context.get` and resources: what each says, the same over every transport."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.daemon import MODERN, Daemon, Http, HttpAgent, Refused
from tests.support.machine import COMMAND, run_command, write_files

ANSWER_TIMEOUT_S = 120
JSON_BODY = {"content-type": "application/json"}
REBUILD = "context build"


class Error(NamedTuple):
    """A tool error, or a JSON-RPC error without its `data`."""

    code: str | int
    message: str


class Served(NamedTuple):
    """A folder of caches, and a daemon that serves it."""

    root: Path
    daemon: Daemon

    def stdio(self, *messages: dict[str, Any]) -> list[Any]:
        first = {"jsonrpc": "2.0", "id": 0, "method": "initialize"}
        given = b"".join(json.dumps(message).encode() + b"\n" for message in (first, *messages))
        argv: list[str | Path] = [COMMAND, "serve", "--stdio", "--cache-root", self.root]
        done = subprocess.run(argv, input=given, capture_output=True, timeout=ANSWER_TIMEOUT_S, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()][1:]

    def texts(self, tool: str, arguments: dict[str, Any]) -> list[str]:
        """The text of a tool over each transport."""
        params = {"name": tool, "arguments": arguments}
        (over_stdio,) = self.stdio({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        texts = [over_stdio["result"]["content"][0]["text"]]
        for era in ("2025-11-25", MODERN):
            with HttpAgent(self.daemon.port, era) as agent:
                texts.append(agent.rpc("tools/call", params)["content"][0]["text"])
        if tool == "context.ask":
            with Http(self.daemon.port) as http:
                texts.append(http.ask("POST", "/v1/ask", json.dumps(arguments).encode(), JSON_BODY).body.decode())
        return texts

    def answer(self, tool: str, **arguments: Any) -> Any:
        texts = self.texts(tool, {"format": "json", **arguments})
        assert len(set(texts)) == 1
        return json.loads(texts[0])

    def error(self, tool: str, **arguments: Any) -> Error:
        answer = self.answer(tool, **arguments)
        assert answer.keys() == {"error"}
        assert answer["error"].keys() == {"code", "message"}
        assert str(self.root.parent) not in answer["error"]["message"]
        return Error(**answer["error"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Two caches, `docs` and `notes`, and `old`, which has no relevance index."""
    folder = tmp_path_factory.mktemp("served")
    deploy = "# Deploying\n\nShip it.\n\n## Roll back\n\nRun it with the last tag.\n"
    sources = {
        "docs": {"deploy.md": deploy, "a:b.md": "A document with a colon: roll back."},
        "notes": {"tour.md": "Roll back the carpet."},
        "old": {"tour.md": "Roll back the years."},
    }
    for name, files in sources.items():
        build(folder, name, files)
    shutil.rmtree(folder / "caches" / "old" / "pack")
    with Daemon(folder / "daemon", "--cache-root", str(folder / "caches")) as daemon:
        yield Served(folder / "caches", daemon)


def build(folder: Path, name: str, files: dict[str, str]) -> None:
    write_files(folder / "sources" / name, files)
    assert run_command("build", "--sources", folder / "sources" / name, "--cache", folder / "caches" / name).code == 0


class TestIdsOfSeveralCaches:
    def test_get_takes_every_id_that_ask_gives(self, served: Served) -> None:
        asked = served.answer("context.ask", query="roll back")
        ids = {document["id"]: document["version"] for document in asked["documents"]}
        assert ids.keys() == {"docs:deploy.md", "docs:a:b.md", "notes:tour.md"}
        for document_id, version in ids.items():
            cache = document_id.partition(":")[0]
            for named in ({}, {"cache": cache}):
                found = served.answer("context.get", id=document_id, **named)["document"]
                assert found["version"] == version
                assert found["id"] == document_id.removeprefix(f"{cache}:" if named else "")

    def test_the_command_takes_the_same_ids(self, served: Served) -> None:
        for document_id in ("docs:deploy.md", "docs:a:b.md"):
            one = run_command("get", document_id, "--cache", served.root / "docs", "--json")
            several = run_command("get", document_id, "--cache-root", served.root, "--json")
            assert (one.code, several.code) == (0, 0)
            # Of several caches, an id has the name of its cache in front.
            assert json.loads(several.out)["document"]["id"] == document_id
            assert json.loads(one.out)["document"]["id"] == document_id.removeprefix("docs:")

    def test_an_id_without_a_name_needs_a_cache(self, served: Served) -> None:
        error = served.error("context.get", id="deploy.md")
        assert error.code == "invalid_query"
        assert has(error.message, "`cache`", "CACHE:ID")

    def test_one_cache_needs_no_name(self, tmp_path: Path) -> None:
        build(tmp_path, "docs", {"docs:x.md": "first", "x.md": "second", "y.md": "third"})
        with Daemon(tmp_path / "daemon", "--cache-root", str(tmp_path / "caches")) as daemon:
            alone = Served(tmp_path / "caches", daemon)
            # A document's whole id goes before an id with the name of the cache.
            contents = {"docs:x.md": "first", "x.md": "second", "docs:docs:x.md": "first", "docs:y.md": "third"}
            for document_id, content in contents.items():
                document = alone.answer("context.get", id=document_id)["document"]
                assert document["sections"][0]["content"] == content

    def test_of_two_names_the_longer_goes_first(self, tmp_path: Path) -> None:
        build(tmp_path, "a", {"b:x.md": "of a", "b:y.md": "only in a"})
        build(tmp_path, "a:b", {"x.md": "of a:b"})
        root = tmp_path / "caches"
        with Daemon(tmp_path / "daemon", "--cache-root", str(root)) as daemon:
            for document_id, content in {"a:b:x.md": "of a:b", "a:b:y.md": "only in a"}.items():
                over_mcp = Served(root, daemon).answer("context.get", id=document_id)
                assert over_mcp["document"]["sections"][0]["content"] == content
                assert json.loads(run_command("get", document_id, "--cache-root", root, "--json").out) == over_mcp


class TestCachesWithoutAnIndex:
    def test_they_are_left_out_of_a_question_to_all_and_named(self, served: Served) -> None:
        selection = served.answer("context.ask", query="roll back")["selection"]
        (left_out,) = selection["caches_left_out"]
        assert left_out.keys() == {"cache", "reason"}
        assert left_out["cache"] == "old"
        assert has(left_out["reason"], "no relevance index", REBUILD)
        assert selection["documents_considered"] == 3
        assert "caches_left_out" not in served.answer("context.ask", query="roll back", cache="docs")["selection"]

    def test_the_command_names_them_too(self, served: Served) -> None:
        ran = run_command("ask", "roll back", "--cache-root", served.root, "--json")
        assert ran.code == 0
        assert ran.out.decode() == served.texts("context.ask", {"query": "roll back", "format": "json"})[0]
        as_text = run_command("ask", "roll back", "--cache-root", served.root)
        texts = served.texts("context.ask", {"query": "roll back", "format": "text"})
        assert {as_text.out.decode()} == {*texts}
        assert has(texts[0], "[the cache 'old' was not asked: ", REBUILD)
        named = run_command("ask", "roll back", "--cache-root", served.root, "--cache", served.root / "old", "--json")
        assert named.code != 0

    def test_one_that_is_named_is_an_error(self, served: Served) -> None:
        error = served.error("context.ask", query="roll back", cache="old")
        assert error.code == "cache_invalid"
        assert has(error.message, "Cache exists but is invalid", "'old'", "no relevance index", REBUILD)
        assert served.error("context.get", cache="old", id="tour.md") == error
        assert served.error("context.get", id="old:tour.md") == error

    def test_an_index_of_another_version_is_left_out_and_a_damaged_one_is_an_error(self, tmp_path: Path) -> None:
        for name in ("docs", "other"):
            build(tmp_path, name, {"x.md": "roll back"})
        root = tmp_path / "caches"
        with Daemon(tmp_path / "daemon", "--cache-root", str(root)) as daemon:
            served = Served(root, daemon)
            head = root / "other" / "pack" / "fingerprints"
            before = head.read_bytes()
            body = before.split(b"\n", 1)[1].replace(b'"index-', b'"later-')
            head.write_bytes(sha256(body).hexdigest().encode() + b"\n" + body)
            (left_out,) = served.answer("context.ask", query="roll back")["selection"]["caches_left_out"]
            assert left_out["cache"] == "other"
            assert has(left_out["reason"], "another version", REBUILD)
            head.write_bytes(before)
            index = root / "other" / "pack" / "index.sqlite"
            index.write_bytes(index.read_bytes().replace(b"roll", b"rock"))
            error = served.error("context.ask", query="roll back")
            assert error.code == "cache_invalid"
            assert has(error.message, "Cache exists but is invalid", "'other' is damaged", REBUILD)

    def test_a_folder_of_documents_without_a_cache_is_told_how_to_get_one(self, tmp_path: Path) -> None:
        call = {"name": "context.ask", "arguments": {"query": "roll back"}}
        first = {"jsonrpc": "2.0", "id": 0, "method": "initialize"}
        lines = (first, {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
        given = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        argv: list[str | Path] = [COMMAND, "serve", "--stdio", "--docs", tmp_path]
        done = subprocess.run(argv, input=given, capture_output=True, timeout=ANSWER_TIMEOUT_S, check=True)
        assert b"the folder has no cache; `context build DIR` makes one" in done.stdout

    def test_without_any_index_there_is_no_answer(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            build(tmp_path, name, {"x.md": "roll back"})
            shutil.rmtree(tmp_path / "caches" / name / "pack")
        with Daemon(tmp_path / "daemon", "--cache-root", str(tmp_path / "caches")) as daemon:
            served = Served(tmp_path / "caches", daemon)
            error = served.error("context.ask", query="roll back")
            assert error.code == "cache_invalid"
            assert has(error.message, "'one'", "no relevance index")
            shutil.rmtree(tmp_path / "caches" / "two")
            assert served.error("context.ask", query="roll back") == error
            shutil.rmtree(tmp_path / "caches" / "one")
            none = served.error("context.ask", query="roll back")
            assert none.code == "cache_missing"
            assert has(none.message, "Cache does not exist", "context build")


GET_ERRORS: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"id": "docs:deploy.md", "section": "Canary"}, ("no such section", "'Canary'")),
    ({"id": "docs:deploy.md", "section": "\ud800"}, ("no such section", r"'\ud800'")),
    ({"id": "docs:deploy.md", "lines": "8-900"}, ("no such lines", "the last line is 7")),
    ({"id": "docs:nothing.md"}, ("no such document", "'docs'")),
    ({"id": "docs:x", "lines": "x" * 5000}, ("lines", "like 40-58", f"'{'x' * 60}…'")),
    ({"id": "docs:x", "around": 10**4000}, ("around", "from 0 to 100")),
    ({"id": "docs:x", "section": "A", "lines": "1"}, ("section and lines",)),
    ({}, ("id must be", "context.ask")),
]
ASK_ERRORS: list[tuple[dict[str, Any], str, tuple[str, ...]]] = [
    ({"query": "x", "unit": "page"}, "invalid_query", ("unit", "section or document")),
    ({"query": "x", "format": "xml"}, "invalid_query", ("format", "text or json")),
    ({"query": "x", "counter": "v0"}, "invalid_budget", ("counter", "estimate-1 or o200k")),
    ({}, "invalid_query", ("Query is invalid", "missing")),
    ({"query": "a \ud800"}, "invalid_query", ("Query is invalid", "UTF-8")),
    ({"query": "x", "budget": -1}, "invalid_budget", ("Budget is invalid", "from 0 to 9223372036854775807")),
    ({"query": "x", "cache": "dosc"}, "cache_missing", ("Cache does not exist", "'dosc'", "context.list_caches")),
]


def has(message: str, *parts: str) -> bool:
    return all(part in message for part in parts)


class TestMessages:
    @pytest.mark.parametrize(("arguments", "parts"), GET_ERRORS)
    def test_get_says_what_was_wrong(self, served: Served, arguments: dict[str, Any], parts: tuple[str, ...]) -> None:
        error = served.error("context.get", **arguments)
        assert error.code == "invalid_query"
        assert has(error.message, *parts), error

    @pytest.mark.parametrize(("arguments", "code", "parts"), ASK_ERRORS)
    def test_ask_says_what_was_wrong(
        self, served: Served, arguments: dict[str, Any], code: str, parts: tuple[str, ...]
    ) -> None:
        error = served.error("context.ask", **arguments)
        assert error.code == code
        assert has(error.message, *parts), error

    def test_an_unknown_argument_is_named_with_those_there_are(self, served: Served) -> None:
        params = {"name": "context.ask", "arguments": {"question": "roll back"}}
        (over_stdio,) = served.stdio({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        message = over_stdio["error"]["message"]
        assert over_stdio["error"] == {"code": -32602, "message": message}
        assert message.startswith("Invalid params: ")
        assert has(message, "context.ask", "'question'", "query, cache, budget, unit, counter, format")
        agent, http = HttpAgent(served.daemon.port), Http(served.daemon.port)
        with pytest.raises(Refused) as refused:
            agent.rpc("tools/call", params)
        assert (refused.value.code, refused.value.message) == (-32602, message)
        answer = http.ask("POST", "/v1/ask", b'{"question": "roll back"}', JSON_BODY)
        assert (answer.status, answer.json["error"]["message"]) == (400, message)
        agent.close()
        http.close()

    def test_every_cache_is_listed_for_the_dashboard(self, served: Served) -> None:
        with Http(served.daemon.port) as http:
            listed = http.ask("GET", "/v1/caches").json["caches"]
        assert [cache["path"] for cache in listed] == ["docs", "notes", "old"]

    def test_the_answer_names_its_counter(self, served: Served) -> None:
        asked = served.answer("context.ask", query="roll back", counter="estimate-1")
        assert asked["selection"]["counter"] == "estimate-1"
        assert served.answer("context.get", id="notes:tour.md", counter="estimate-1")["counter"] == "estimate-1"


class TestCommand:
    @pytest.mark.parametrize(
        ("options", "headline"),
        [
            (("--section", "Canary"), "The document has no such section"),
            (("--lines", "8"), "The document has no such lines"),
        ],
    )
    def test_a_missing_part_is_not_a_missing_document(
        self, served: Served, options: tuple[str, ...], headline: str
    ) -> None:
        ran = run_command("get", "deploy.md", "--cache", served.root / "docs", *options)
        assert (ran.code, ran.err.splitlines()[0]) == (2, f"error: {headline}")


class TestResources:
    @pytest.mark.parametrize(
        ("uri", "kind", "parts"),
        [
            ("docs/nothing.md", "invalid_query", ("no such document", "'docs'")),
            ("none", "cache_missing", ("Cache does not exist", "'none'")),
            ("old", "cache_invalid", ("Cache exists but is invalid", "'old'", REBUILD)),
            ("old/tour.md", "cache_invalid", ("Cache exists but is invalid", "'old'", REBUILD)),
        ],
    )
    def test_both_transports_say_the_same_of_what_cannot_be_read(
        self, served: Served, uri: str, kind: str, parts: tuple[str, ...]
    ) -> None:
        params = {"uri": f"context://caches/{uri}"}
        (over_stdio,) = served.stdio({"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": params})
        with HttpAgent(served.daemon.port) as agent, pytest.raises(Refused) as refused:
            agent.rpc("resources/read", params)
        error = over_stdio["error"]
        assert error == {"code": refused.value.code, "message": refused.value.message, "data": refused.value.data}
        assert error["code"] == (-32602 if kind == "cache_invalid" else -32002)
        assert error["data"] == {**params, "kind": kind}
        assert has(error["message"], *parts)
