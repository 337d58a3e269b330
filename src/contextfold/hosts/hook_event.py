"""What a hook reports, whichever host it is. Knows no host's format, no session of ours and no wire."""

from __future__ import annotations

from contextfold.common.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class HookOperation:
    """Something that was done in the agent's working context."""

    # The tool's name, or the kind of thing it was: printable, 1 to 128 characters.
    type: str
    # What it put into the context, as the model reads it.
    content: str
    failed: bool = False
    # Set where the content is not what fills the context.
    tokens: int | None = None
    # The same for two reports of the same thing; empty if nothing tells them apart.
    call_id: str = ""
    # The content replaces everything that the context held.
    compacts: bool = False
    # The words of a person.
    by_user: bool = False


@dataclass(frozen=True, slots=True)
class HookEvent:
    # The host's name for the event, if we know it; otherwise "other".
    event: str
    # The host's own id of the conversation.
    conversation: str
    # Set for a subagent, which has a context of its own.
    agent: str | None = None
    # Where the agent works.
    folder: str | None = None
    done: HookOperation | None = None
    # A session of ours, named in the result of one of our tools.
    session_id: str | None = None
    # Calls of one turn, reported together; some may have been reported before.
    batch: tuple[HookOperation, ...] = ()
    # The host is compacting: the known figures are no longer true, and the new ones not yet known.
    is_compacting: bool = False
    # The model at work, where the host names it.
    model: str = ""
    # A conversation begins with nothing in its context.
    is_beginning: bool = False
