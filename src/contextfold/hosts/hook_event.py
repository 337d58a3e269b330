"""What a host's hook tells, whichever host it is. Knows no host's format, no session of ours and no wire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Done:
    """Something that was done in the agent's working context."""

    type: str  # the tool's name, or what kind of thing it was: printable, 1 to 128 characters
    content: str  # what it put into the context, as the model reads it
    failed: bool = False
    tokens: int | None = None  # where the content is not what fills the context
    call_id: str = ""  # the same for two reports of the same thing; empty if nothing tells
    compacts: bool = False  # the content is all that is left of what the context held


@dataclass(frozen=True, slots=True)
class Observed:
    event: str  # what the host calls it, if we know it; else "other"
    conversation: str  # the host's own id of the conversation
    agent: str | None = None  # of a subagent, whose context is its own
    folder: str | None = None  # where the agent works
    done: Done | None = None
    session_id: str | None = None  # of ours, as a result of one of our tools named it
    batch: tuple[Done, ...] = ()  # calls of one turn, told together: some, by their call_id, were told before
    is_ours: bool = False  # a call of our own, which the model has our line of already
    is_compacting: bool = False  # what is known of its context is no longer true, and what is true not known yet
