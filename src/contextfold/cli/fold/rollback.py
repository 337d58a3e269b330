"""`context fold rollback`: rolls back to the beginning of a branch, after the user has confirmed a preview."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from contextfold.app import make_fold_service
from contextfold.cli.fold.list import id_length
from contextfold.cli.fold.session_access import (
    MAIN,
    AwaitedStore,
    SessionAddress,
    add_branch,
    add_session_options,
    open_awaited_store,
    session_address,
    session_not_found,
    write,
    write_json,
)
from contextfold.cli.output import ask_yes_no, can_ask, print_error, print_on_stderr, print_on_terminal
from contextfold.cli.parser import CommandParser, UsageError
from contextfold.cli.terminal import Column, Line, Screen, open_screen, stdout_screen
from contextfold.common.answer_format import format_count
from contextfold.common.canonical import encode
from contextfold.errors import EXIT_CODES, EXIT_OK, EXIT_USAGE, ArgumentInvalid, BranchNotFound, BranchStateInvalid
from contextfold.fold.service.session_views import preview_rollback
from contextfold.fold.session import Branch, State
from contextfold.fold.verbs import RollBack

QUESTION = "Roll back?"


class Preview(NamedTuple):
    """The session and the branch to go back to, and what `/v1` answers to a question for the effects."""

    state: State
    target: Branch
    result: Mapping[str, Any]

    @property
    def ids(self) -> list[list[str]]:
        """The ids of the branches that are discarded, and of those that are open again."""
        return [[branch["id"] for branch in self.result[member]] for member in ("branches_discarded", "reopened")]


def declare_rollback(parser: CommandParser) -> None:
    parser.describe(
        """
        Undo everything since a branch began: later branches are discarded, and the branch is open again.
        Says first what that discards, and asks. Nothing is erased: `context fold show` still has it.
        """,
        "context fold rollback br_4c1d --dry-run",
        "context fold rollback br_4c1d",
        "context fold rollback br_4c1d --keep --yes",
    )
    add_branch(parser)
    parser.add_switch("--keep", "discard only the later branches; operations outside them stay")
    parser.add_switch("--yes", "do not ask for confirmation")
    parser.add_switch("--dry-run", "print what would be undone, and change nothing")
    add_session_options(parser)
    parser.set_defaults(run=run_rollback)


def run_rollback(args: argparse.Namespace) -> int:
    address = session_address(args)
    is_asked = not args.yes and not args.dry_run
    if is_asked and not can_ask():
        raise UsageError(
            "there is no terminal to ask on: add --yes to roll back, or --dry-run to see what that discards"
        )
    with open_awaited_store(args) as store:
        preview = _preview(store, address, args)
        if args.dry_run:
            if args.json:
                write_json(preview.result)
            else:
                write(_render_preview(stdout_screen(), preview, keeps=args.keep))
            return EXIT_OK
        if is_asked:
            print_on_stderr(_render_preview(open_screen(sys.stderr), preview, keeps=args.keep))
            if not ask_yes_no(QUESTION):
                print_on_terminal("nothing was rolled back")
                return EXIT_USAGE
            # An agent may have added branches while the question was open.
            if _preview(store, address, args).ids != preview.ids:
                print_error("the session went on meanwhile", "nothing was rolled back; run the command again")
                return EXIT_CODES[BranchStateInvalid.code]
        assert preview.state.session_id
        arguments = {"branch_id": preview.target.id, "restore_state": not args.keep}
        service = make_fold_service(store.settings, store.store)
        answer = store.run(service.roll_back_session(address.owner, preview.state.session_id, arguments))
    write(encode(answer) + "\n" if args.json else _describe_result(stdout_screen(), preview, answer))
    return EXIT_OK


def _preview(store: AwaitedStore, address: SessionAddress, args: argparse.Namespace) -> Preview:
    found = store.find(address)
    try:
        found, branch_id = store.find_branch(address, found, args.branch)
    except BranchNotFound:
        if found.state.session_id:
            raise
        raise session_not_found(address) from None
    if branch_id is None:
        raise ArgumentInvalid("BRANCH", f"cannot be {MAIN}: a rollback goes back to where a branch began")
    state = found.state
    events = RollBack(branch_id, not args.keep).decide(state, state.last_at)
    result = preview_rollback(state, branch_id, events)
    return Preview(state, state.branches[branch_id], result)


def _render_preview(screen: Screen, preview: Preview, *, keeps: bool) -> str:
    target, figure = preview.target, screen.figure
    length = id_length(preview.state.branches)
    before, after = preview.state.total_tokens, preview.result["total_tokens_after"]
    title: Line = ["Back to where ", (screen.short(target.id, length), "dim"), " began: ", (target.description, "bold")]
    effect = "what it and the threads above it did stays" if keeps else "everything since is undone"
    text = screen.lines(title, [(f"begun {screen.moment(target.created_at)}; {effect}", "dim")], "", wraps=True)
    discarded, reopened = preview.ids
    text += _list_branches(screen, preview.state, "discarded", discarded, "red")
    text += _list_branches(screen, preview.state, "open again", reopened, "cyan")
    change: Line = [("tokens", "bold"), f"  {figure(before)} → ", (figure(after), "green" if after < before else "")]
    return text + screen.lines(change)


def _list_branches(screen: Screen, state: State, title: str, branch_ids: Sequence[str], style: str) -> str:
    if not branch_ids:
        return screen.lines([(title, "bold"), "  none"])
    length = id_length(state.branches)
    rows: list[Sequence[Line]] = [
        [
            [("  " + screen.short(branch.id, length), "dim")],
            [(branch.status, style)],
            [screen.figure(branch.tokens)],
            [branch.description],
        ]
        for branch in map(state.branches.__getitem__, branch_ids)
    ]
    columns = [Column(), Column(), Column(is_right=True), Column(shrinks=True)]
    return screen.lines([(title, "bold"), f"  {format_count(len(branch_ids), 'branch')}"]) + screen.table(columns, rows)


def _describe_result(screen: Screen, preview: Preview, done: Mapping[str, Any]) -> str:
    """The result of the rollback. It may have discarded more branches than the preview had."""
    target = screen.short(done["rolled_back_to"], id_length(preview.state.branches))
    discarded, recovered = len(done["branches_discarded"]), screen.figure(done["tokens_recovered"])
    left = screen.figure(done["context_state"]["total_tokens"])
    summary = f": {format_count(discarded, 'branch')} discarded, {recovered} tokens recovered, {left} left"
    return screen.lines(
        [("↶ " if screen.is_terminal else "", "green"), "back at ", (target, "bold"), summary], wraps=True
    )
