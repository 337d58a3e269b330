"""The content of a hook report, the same for all hosts. Knows no host's format, no session and no protocol."""

from __future__ import annotations

from contextfold.common.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class HookOperation:
    """One operation in the agent's context."""

    # The tool's name, or another kind of operation: printable, 1 to 128 characters.
    type: str
    # The text that the model reads.
    content: str
    failed: bool = False
    # Set if the number of tokens in the context does not follow from the content.
    tokens: int | None = None
    # Equal for two reports of the same operation; empty if repeated reports cannot be recognised.
    call_id: str = ""
    # Whether the content replaces everything in the context.
    compacts: bool = False
    # Whether the user wrote the content.
    by_user: bool = False


@dataclass(frozen=True, slots=True)
class HookEvent:
    # The host's name of a known event; otherwise "other".
    event: str
    # The host's id of the conversation.
    conversation: str
    # Set for a subagent, which has a context of its own.
    agent: str | None = None
    # The agent's working folder.
    folder: str | None = None
    done: HookOperation | None = None
    # The session id in the result of one of this product's tools.
    session_id: str | None = None
    # The calls of one turn, reported together. Some may have been reported before.
    batch: tuple[HookOperation, ...] = ()
    # Whether the host is compacting. The recorded figures are then obsolete, and the new ones are not yet known.
    is_compacting: bool = False
    # The model, if the host names it.
    model: str = ""
    # A conversation begins with nothing in its context.
    is_beginning: bool = False
