"""`context fold rollback`: back to where a branch began, once a person has seen what that discards and agreed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contextfold.cli.fold.session_access import (
    MAIN,
    Desk,
    Place,
    Values,
    at_desk,
    branch_of,
    no_session,
    place_of,
    tell,
    tell_json,
)
from contextfold.cli.fold.tree import id_length, standing
from contextfold.cli.output import is_agreed, is_attended, report, say_to_person, tell_on_terminal
from contextfold.cli.parse import UsageError
from contextfold.cli.terminal import Column, Line, Screen, screen, screen_on, several
from contextfold.common.canonical import Encodable
from contextfold.error_codes import EXIT_CODES, EXIT_OK, EXIT_USAGE
from contextfold.errors import ArgumentInvalid, BranchStateInvalid
from contextfold.fold.accounting import total_tokens
from contextfold.fold.session import Branch, State

QUESTION = "Roll back?"


@dataclass(frozen=True, slots=True)
class Preview:
    """What a rollback would do to a state."""

    state: State
    target: Branch
    keeps: bool  # what the target and the threads above it have done
    told: Mapping[str, Encodable]
    discarded: Sequence[Branch]
    opened: Sequence[Branch]  # closed ones that would be open again, the outermost first
    tokens_after: int


def run(values: Values) -> int:
    place = place_of(values)
    is_asked = "yes" not in values and "dry-run" not in values
    if is_asked and not is_attended():
        raise UsageError(
            "there is no terminal to ask on: add --yes to roll back, or --dry-run to see what that discards"
        )
    with at_desk(values) as desk:
        preview = _preview(desk, place, values)
        if "dry-run" in values:
            if "json" in values:
                tell_json(preview.told)
            else:
                tell(_told(screen(), preview))
            return EXIT_OK
        if is_asked:
            say_to_person(_told(screen_on(sys.stderr), preview))
            if not is_agreed(QUESTION):
                tell_on_terminal("nothing was rolled back")
                return EXIT_USAGE
            if _ids(_preview(desk, place, values)) != _ids(preview):  # an agent may be at work meanwhile
                report("the session went on meanwhile", "nothing was rolled back; run the command again")
                return EXIT_CODES[BranchStateInvalid.code]
        assert preview.state.session_id
        answer = desk.fold.run(
            desk.overview.roll_back(
                place.owner, preview.state.session_id, preview.target.id, restore_state=not preview.keeps
            )
        )
    tell(answer + "\n" if "json" in values else _done(screen(), preview, answer))
    return EXIT_OK


def _preview(desk: Desk, place: Place, values: Values) -> Preview:
    state = desk.look(place)
    if not state.session_id:
        raise no_session(place)
    branch_id = branch_of(state, values["branch"])
    if branch_id is None:
        raise ArgumentInvalid("BRANCH", f"cannot be {MAIN}: a rollback goes back to where a branch began")
    told: Mapping[str, Any] = desk.fold.run(
        desk.overview.preview(place.owner, state.session_id, branch_id, restore_state="keep" not in values)
    )
    return Preview(
        state,
        state.branches[branch_id],
        "keep" in values,
        told,
        [state.branches[one["id"]] for one in told["branches_discarded"]],
        [state.branches[one["id"]] for one in told["reopened"]],
        told["total_tokens_after"],
    )


def _ids(preview: Preview) -> list[list[str]]:
    return [[branch.id for branch in branches] for branches in (preview.discarded, preview.opened)]


def _told(shown: Screen, preview: Preview) -> str:
    target, figure = preview.target, shown.figure
    length = id_length(preview.state.branches)
    before, after = total_tokens(preview.state), preview.tokens_after
    title: Line = ["Back to where ", (shown.short(target.id, length), "dim"), " began: ", (target.description, "bold")]
    kept = "what it and the threads above it did stays" if preview.keeps else "everything since is undone"
    told = shown.lines(title, [(f"begun {shown.moment(target.created_at)}; {kept}", "dim")], "", wraps=True)
    told += _listed(shown, preview, "discarded", preview.discarded, "red")
    told += _listed(shown, preview, "open again", preview.opened, "cyan")
    change: Line = [("tokens", "bold"), f"  {figure(before)} → ", (figure(after), "green" if after < before else "")]
    return told + shown.lines(change)


def _listed(shown: Screen, preview: Preview, title: str, branches: Sequence[Branch], style: str) -> str:
    if not branches:
        return shown.lines([(title, "bold"), "  none"])
    length = id_length(preview.state.branches)
    rows: list[Sequence[Line]] = [
        [
            [("  " + shown.short(branch.id, length), "dim")],
            [(standing(branch, preview.state).word, style)],
            [shown.figure(branch.tokens)],
            [branch.description],
        ]
        for branch in branches
    ]
    columns = [Column(), Column(), Column(is_right=True), Column(gives_way=True)]
    return shown.lines([(title, "bold"), f"  {several(len(branches), 'branch')}"]) + shown.table(columns, rows)


def _done(shown: Screen, preview: Preview, answer: str) -> str:
    """As it was done, which may be more than was foreseen."""
    done = json.loads(answer)
    target = shown.short(done["rolled_back_to"], id_length(preview.state.branches))
    discarded, recovered = len(done["branches_discarded"]), shown.figure(done["tokens_recovered"])
    left = shown.figure(done["context_state"]["total_tokens"])
    told = f": {several(discarded, 'branch')} discarded, {recovered} tokens recovered, {left} left"
    return shown.lines([("↶ " if shown.is_drawn else "", "green"), "back at ", (target, "bold"), told], wraps=True)
