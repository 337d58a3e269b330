"""Folds a list of messages: leaves the turns of returned branches and of folds out of a request.

Little else is changed, and nothing that a user wrote is ever left out.

    projection = project(messages, "anthropic")
    client.messages.create(messages=projection.messages, ...)

Pure: the same history always gives the same list. Knows the lists of four APIs, no protocol and no session.
"""

from __future__ import annotations

from contextfold.fold.messages.apis import FORMATS, Format
from contextfold.fold.messages.cold_results import (
    ColdResult,
    ColdSettings,
    Remembered,
    by_call,
    merged_outcomes,
)
from contextfold.fold.messages.own_tools import CallOutcome
from contextfold.fold.messages.projection import Projection, project
from contextfold.fold.messages.receipt import OPEN_BRANCH, Fold, Receipt, Skipped, Span
from contextfold.fold.messages.request import (
    REQUEST_REASONS,
    BodyProjection,
    ParsedRequest,
    parse_request,
    project_body,
    project_request,
)
from contextfold.fold.messages.walk import FOLD_REASONS
from contextfold.fold.messages.weight import IMAGE_TOKENS

__all__ = [
    "FORMATS",
    "IMAGE_TOKENS",
    "OPEN_BRANCH",
    "REASONS",
    "BodyProjection",
    "CallOutcome",
    "ColdResult",
    "ColdSettings",
    "Fold",
    "Format",
    "ParsedRequest",
    "Projection",
    "Receipt",
    "Remembered",
    "Skipped",
    "Span",
    "by_call",
    "merged_outcomes",
    "parse_request",
    "project",
    "project_body",
    "project_request",
]

# The reasons why something was not folded. OPEN_BRANCH is not among them, because an open branch is not a problem.
REASONS: tuple[str, ...] = FOLD_REASONS + REQUEST_REASONS
