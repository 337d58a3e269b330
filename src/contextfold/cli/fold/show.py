"""`context fold show` prints what a branch did, from the archive; `context fold expand` prints its texts alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from contextfold.cli.fold.list import FEWER, IF_FOLDED, branch_look, fewer_part, id_length
from contextfold.cli.fold.session_access import (
    MAIN,
    OpenStore,
    add_branch,
    add_session_options,
    open_store,
    owner_of,
    session_address,
    utf8_text,
    write,
    write_json,
)
from contextfold.cli.output import escape_lines
from contextfold.cli.parser import CommandParser
from contextfold.cli.terminal import Column, Line, Part, Screen, stdout_screen, text_lines
from contextfold.common.answer_format import format_count
from contextfold.common.canonical import Encodable
from contextfold.errors import ArgumentInvalid
from contextfold.fold.archive import ArchiveEntry
from contextfold.fold.service.session_views import branch_view, row_of
from contextfold.fold.session import State
from contextfold.fold.tool_calls import RESULT_PREFIX, RESULT_UNKNOWN, entry_result

# Without --full, an entry is cut after this many lines, and each line after this many characters.
EXCERPT_LINES = 3
EXCERPT_LENGTH = 300
# At most this many branches below a branch are listed; `context fold list` has all of them.
CHILDREN_MAX = 20
# The width of the column with the kind of an entry.
WORD_WIDTH = 10
MARKS = {"prompt": "›", "operation": "·", "child": "✓", "summary": "✓", "rollback": "↶"}
STYLES = {"prompt": "bold blue", "operation": "cyan", "child": "green", "summary": "bold green", "rollback": "yellow"}


def declare_show(parser: CommandParser) -> None:
    parser.describe(
        """
        Show a branch's prompt, its operations, the branches below it and its summary, from the archive.
        Discarded branches can be shown, too. For a branch of an ended session give the whole id.
        """,
        "context fold show br_4c1d",
        "context fold show main",
        "context fold show br_4c1d --full | less",
    )
    add_branch(parser)
    parser.add_switch("--full", "print texts in full, not only their first lines")
    add_session_options(parser)
    parser.set_defaults(run=run_show)


def run_show(args: argparse.Namespace) -> None:
    with open_store(args) as store:
        found, branch_id = store.find_archived(session_address(args), args.branch)
        state, pages = found.state, store.pages(found, branch_id)
        if args.json:
            write_json(_json(state, branch_id, [entry for page in pages for entry in page]))
            return
        screen, length = stdout_screen(), id_length(state.branches)
        is_read = write(_head(screen, state, branch_id))
        # Each page is written before the next one is read, so a long branch needs little memory.
        for page in pages:
            if not is_read:
                break
            is_read = write("".join(_entry(screen, entry, length, is_full=args.full) for entry in page))
        if is_read:
            write(_children(screen, state, branch_id))


def _json(state: State, branch_id: str | None, entries: Sequence[ArchiveEntry]) -> Encodable:
    is_live = branch_id in state.branches
    return {
        "session_id": state.session_id if is_live or branch_id is None else None,
        "branch_id": branch_id,
        "branch": branch_view(state, row_of(state, branch_id)) if branch_id is not None and is_live else None,
        "entries": [entry_result(entry, entry.text, is_part=False) for entry in entries],
    }


def _head(screen: Screen, state: State, branch_id: str | None) -> str:
    if branch_id is None:
        main, tokens = state.main, [f"{screen.figure(state.main.tokens)} tokens"]
        return screen.lines(
            [("main thread", "bold")], [*tokens, *_work(main.operations, main.failed, main.redactions)], ""
        )
    branch = state.branches.get(branch_id)
    if branch is None:
        return screen.lines([(branch_id, "bold"), ("  of an earlier session, or another one", "dim")], "")
    mark, style, _ = branch_look(branch, state)
    figures: list[Part] = [f"{screen.figure(branch.tokens)} tokens"]
    if branch.status == "folded":
        words = FEWER if state.requests else f"{FEWER} {IF_FOLDED}"
        figures += [
            f" folded to {screen.figure(branch.summary_tokens)}, ",
            fewer_part(screen, state, branch),
            f" {words}",
        ]
    closed = f"  {branch.status} {screen.moment(branch.closed_at)}" if branch.closed_at else ""
    return screen.lines(
        [(branch.id, "dim"), (f"  {mark} " if screen.is_terminal else "  ", style), (branch.status, style)],
        [(branch.description, "bold")],
        _above(state, branch.parent_id),
        [(f"begun {screen.moment(branch.created_at)}{closed}", "dim")],
        [*figures, *_work(branch.operations, branch.failed, branch.redactions)],
        "",
        wraps=True,
    )


def _work(operations: int, failed: int, redactions: int) -> list[Part]:
    parts: list[Part] = [f", {format_count(operations, 'operation')}"]
    parts += [(f", {failed:,} failed", "red")] if failed else []
    parts += [(f", {format_count(redactions, 'secret')} scrubbed", "yellow")] if redactions else []
    return parts


def _above(state: State, parent_id: str | None) -> Line:
    """The path from the main thread to the parent of a branch."""
    names: list[str] = []
    while parent_id is not None:
        names.insert(0, state.branches[parent_id].description)
        parent_id = state.branches[parent_id].parent_id
    return [("in ", "dim"), (" › ".join([MAIN, *names]), "")]


def _entry(screen: Screen, entry: ArchiveEntry, length: int, *, is_full: bool) -> str:
    lines = text_lines(entry.text)
    excerpt = lines if is_full else [_excerpt(line) for line in lines[:EXCERPT_LINES]]
    style = "dim" if entry.undone else ""
    lines_shown: list[Line] = [[(line, style)] for line in excerpt]
    if len(lines) > len(excerpt):
        lines_shown.append([(f"… {format_count(len(lines) - len(excerpt), 'more line')}, see --full", "dim italic")])
    return screen.lines(_entry_head(screen, entry, length)) + screen.block(*lines_shown, wraps=is_full) + "\n"


def _entry_head(screen: Screen, entry: ArchiveEntry, length: int) -> Line:
    style = "dim" if entry.undone else "red" if entry.failed else STYLES[entry.kind]
    mark = "✗" if entry.failed else MARKS[entry.kind]
    word = entry.type if entry.kind == "operation" and screen.is_terminal else entry.kind
    child = screen.short(entry.child_id or "", length)
    notes = [child, "failed" if entry.failed else "", "undone" if entry.undone else ""]
    notes += ["" if word == entry.type else entry.type, entry.source]
    tokens = f"  {screen.figure(entry.tokens)} tokens" if entry.kind != "rollback" else ""
    return [
        (f"{mark} " if screen.is_terminal else "", style),
        (f"{word:<{WORD_WIDTH}}", style),
        (f"  {screen.moment(entry.at)}{tokens}", "dim"),
        *((f"  {note}", style if note in ("failed", "undone") else "dim") for note in notes if note),
        ("  what is marked undone was taken back" if entry.kind == "rollback" else "", "dim"),
    ]


def _excerpt(line: str) -> str:
    return line if len(line) <= EXCERPT_LENGTH else line[:EXCERPT_LENGTH] + " …"


def _children(screen: Screen, state: State, branch_id: str | None) -> str:
    """A table of the branches below a branch, of any status."""
    children = [branch for branch in state.branches.values() if branch.parent_id == branch_id]
    if not children or (branch_id is not None and branch_id not in state.branches):
        return ""
    length = id_length(state.branches)
    rows: list[Sequence[Line]] = []
    for child in children[-CHILDREN_MAX:]:
        mark, style, text_style = branch_look(child, state)
        status: Line = [(f"{mark} " if screen.is_terminal else "", style), (child.status, style)]
        number, name = [screen.figure(child.tokens)], [(child.description, text_style)]
        rows.append([[(screen.short(child.id, length), "dim")], status, number, name])
    left_out = len(children) - len(rows)
    title = "branches" + (f" (the last {len(rows)} of {len(children)})" if left_out else "")
    columns = [Column(), Column(), Column(is_right=True), Column(shrinks=True)]
    return screen.lines([(title, "bold")]) + screen.table(columns, rows)


def declare_expand(parser: CommandParser) -> None:
    parser.describe(
        """
        Print the texts of a branch as the archive has them, with secrets redacted: its prompt, what it did,
        its summary. What a rollback undid is left out. A res_… id gives a tool result that the proxy left
        out of a request. Control characters are escaped unless --raw is given. With --json, all the entries
        that `context_expand` gives.
        """,
        "context fold expand br_4c1d",
        "context fold expand br_4c1d | grep -n timeout",
        "context fold expand res_0f3a --raw > result.txt",
    )
    parser.add_argument(
        "branch", metavar="BRANCH", help="a branch's id or a unique beginning of it, or a left-out result's res_… id"
    )
    parser.add_switch("--raw", "print the stored bytes, including control characters")
    add_session_options(parser)
    parser.set_defaults(run=run_expand)


def run_expand(args: argparse.Namespace) -> None:
    with open_store(args) as store:
        if args.branch.startswith(RESULT_PREFIX):
            _expand_result(store, args)
            return
        found, branch_id = store.find_archived(session_address(args), args.branch)
        pages = store.pages(found, branch_id)
        if args.json:
            entries = [entry_result(entry, entry.text, is_part=False) for page in pages for entry in page]
            write_json({"branch_id": branch_id, "entries": entries})
            return
        # Each page is written before the next one is read, so a long branch needs little memory.
        for page in pages:
            texts = [entry.text for entry in page if entry.text and not entry.undone]
            if not write("".join(f"{text if args.raw else escape_lines(text)}\n" for text in texts)):
                break


def _expand_result(store: OpenStore, args: argparse.Namespace) -> None:
    result_id = utf8_text("ID", args.branch)
    text = store.sessions.store.left_out_text(owner_of(args), result_id)
    if text is None:
        raise ArgumentInvalid("ID", f"{result_id} {RESULT_UNKNOWN}")
    if args.json:
        write_json({"result_id": result_id, "text": text})
    else:
        write(text if args.raw else f"{escape_lines(text)}\n")
