"""The definitions of the folding tools, for every transport: the name and schema of each, and what it calls.

Names, descriptions and schemas follow the contract. Every request of an agent contains the definitions, so together
they have less than 900 tokens. Failures are errors of the protocol, with the session's state.
"""

from __future__ import annotations

from collections.abc import Mapping

from contextfold.common.answer_format import FORMATS
from contextfold.common.canonical import Encodable, encode
from contextfold.errors import ArgumentInvalid, FoldError, place_of
from contextfold.fold.project import Caller
from contextfold.fold.service.fold_service import FoldService
from contextfold.serve.mcp.tools import Arguments, FoldTool, ToolResult, text_schema
from contextfold.serve.request_error import RequestError, internal_error, known_error

# The member of a request's `_meta` with the name of its session.
META_SESSION = "contextfold/session"
# The member of a request's `_meta` with an operation id. Requests with the same id take effect once.
META_OPERATION = "contextfold/operation_id"
# The member of a request's `_meta` with the host's id of the call.
META_CALL = "claudecode/toolUseId"


def _schema(required: list[str], **properties: Encodable) -> dict[str, Encodable]:
    return {"type": "object", "properties": properties, "required": required}


_PROJECT = text_schema("Absolute path to project directory")
# Only the first tool describes this argument, because a model reads all tools together.
_SAME_PROJECT: Encodable = {"type": "string"}

FOLD_TOOLS = (
    FoldTool(
        "context_branch",
        "before a subtask of many calls whose details you will not need, such as a search or a series of attempts",
        "Create sub-trajectory for focused subtask",
        _schema(
            ["description", "prompt", "project_path"],
            description=text_schema("Brief summary of subtask (max 200 chars)"),
            prompt=text_schema("Detailed instruction for branch execution"),
            project_path=_PROJECT,
        ),
        FoldService.open_branch,
        reads=False,
    ),
    FoldTool(
        "context_return",
        "when that subtask is done or given up; the message must say everything needed from then on",
        "Fold branch and return to parent with summary",
        _schema(
            ["message", "project_path"],
            message=text_schema("Summary of branch outcome"),
            project_path=_PROJECT,
            branch_id=text_schema("Branch to fold (defaults to current active branch)"),
        ),
        FoldService.return_branch,
        reads=False,
    ),
    FoldTool(
        "context_fold",
        "after finished work, without a branch; worth it from 5,000 tokens on with more work to come, not near the end",
        "Replace your finished tool calls since the user's last message by a summary. Worth "
        "it from 5,000 tokens on with more work to come, not near the end. Best beside a call with a short result",
        _schema(
            ["message"],
            message=text_schema("All that is still needed: results, files and lines, changes, failures"),
            project_path=_SAME_PROJECT,
        ),
        FoldService.fold_work,
        reads=False,
    ),
    FoldTool(
        "context_branch_status",
        "see which branch is active and how full the context is",
        "Get current branch state",
        _schema(["project_path"], project_path=_SAME_PROJECT),
        FoldService.branch_status,
    ),
    FoldTool(
        "context_list_branches",
        "see every branch of the session and its status",
        "List all branches for session",
        _schema(["project_path"], project_path=_SAME_PROJECT),
        FoldService.list_branches,
    ),
    FoldTool(
        "context_rollback",
        "go back to where a branch began; later branches are discarded, nothing is erased from the archive",
        "Rollback to specific branch point (checkpoint integration)",
        _schema(
            ["project_path", "branch_id"],
            project_path=_SAME_PROJECT,
            branch_id={"type": "string"},
            restore_state={"type": "boolean", "description": "false: only discard later branches"},
        ),
        FoldService.roll_back,
        reads=False,
        destroys=True,
    ),
    FoldTool(
        "context_record",
        "report what was done where no hook does: a tool's output, a file that was read, a message",
        "Record an operation of yours, where no hook does",
        _schema(
            ["project_path", "type"],
            project_path=_SAME_PROJECT,
            type=text_schema("tool_call, message, …"),
            content={"type": "string"},
            tokens={"type": "integer", "minimum": 0},
            failed={"type": "boolean"},
        ),
        FoldService.record,
        reads=False,
    ),
    FoldTool(
        "context_expand",
        "read again what was folded, a page at a time",
        "Read again what was folded",
        _schema(
            ["branch_id"],
            project_path=_SAME_PROJECT,
            branch_id=text_schema("Id of the branch, fold or res_… result"),
            budget={"type": "integer", "description": "Tokens (default 2000)"},
            cursor=text_schema("next_cursor"),
        ),
        FoldService.expand,
    ),
    FoldTool(
        "context_recall",
        "find earlier work, of any session, that was folded",
        "Find earlier folded work",
        _schema(
            ["query"],
            query={"type": "string"},
            project_path=_SAME_PROJECT,
            budget={"type": "integer"},
            since=text_schema("Date, or 7d"),
            format={"enum": list(FORMATS)},
        ),
        FoldService.recall,
    ),
)

# The tools that an agent behind the proxy needs to fold finished work and to read it again.
AFTERWARDS_TOOLS = tuple(tool for tool in FOLD_TOOLS if tool.name in ("context_fold", "context_expand"))


def caller_from(
    owner: str,
    meta: Mapping[str, object],
    *,
    session: str | None = None,
    operation_id: str | None = None,
    run: str = "",
) -> Caller:
    """The caller of a tool. Headers take precedence over `_meta`."""
    call_id = meta.get(META_CALL)
    return Caller(
        owner,
        session if session is not None else _string(meta, META_SESSION),
        operation_id if operation_id is not None else _string(meta, META_OPERATION),
        run,
        call_id if isinstance(call_id, str) else "",
    )


def _string(meta: Mapping[str, object], key: str) -> str | None:
    value = meta.get(key)
    if value is not None and not isinstance(value, str):
        raise ArgumentInvalid(key, "must be a string")
    return value


async def run_fold_tool(tool: FoldTool, service: FoldService, caller: Caller, arguments: Arguments) -> ToolResult:
    """Run a tool. Raises RequestError with the session's state for every failure."""
    try:
        caller = await service.identify(caller, tool.name, arguments)
        outcome = await tool.handler(service, caller, arguments)
    except FoldError as problem:
        raise await to_request_error(problem, service, caller, arguments) from problem
    except Exception as problem:
        state = service.describe_state(await service.state_after_failure(caller, arguments, problem))
        raise internal_error(f"{type(problem).__name__} at {place_of(problem)}", state=state, data={}) from problem
    # A text has a budget and no place for a reminder, which the next result has. On the main thread, the result itself
    # has the advice as its suggestion.
    reminder = service.advise(outcome.state) if outcome.state.path and not outcome.text else ""
    answer = {**outcome.answer, "reminder": reminder} if reminder else outcome.answer
    state = service.describe_state(outcome.state)
    return ToolResult(outcome.text or encode(answer), state=state, counter=service.policy.counter)


async def to_request_error(
    problem: FoldError, service: FoldService, caller: Caller, arguments: Arguments
) -> RequestError:
    """The error for the caller after an expected failure: without secrets, with the session's state."""
    message, data = service.safe_error(problem)
    reason = f"{problem.code}: {problem.reason}" if problem.reason != problem.message else problem.code
    state = service.describe_state(await service.state_after_failure(caller, arguments, problem))
    return known_error(problem.code, message, data, reason=reason, state=state)
