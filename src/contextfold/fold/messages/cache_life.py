"""How long a provider keeps a prompt in its cache after its last use. Decided here and nowhere else.

It is decided from the request, from its model, and from what the provider's usage has shown in this conversation. Where
the documentation gives a range, or the model is not known, the longer life counts: a result that is left out of a warm
cache costs money, one that stays a while longer costs nothing that would not have been paid anyway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from contextfold.fold.messages.apis import Format
from contextfold.fold.messages.facts import Members, block_members

MINUTE_S, HOUR_S, DAY_S = 60.0, 3_600.0, 86_400.0
# No provider's cache has a shorter life, so a shorter pause needs no look at the request.
SHORTEST_S = 5 * MINUTE_S
# The lives that providers offer. What was still cached after a pause is taken to live for the next longer one.
LIVES_S = (SHORTEST_S, HOUR_S, DAY_S)

# The usual life for each API, from the documents of the providers in November 2026.
_USUAL_S: Mapping[Format, float] = {
    # 5 minutes, unless a mark in the request says `"ttl": "1h"`.
    "anthropic": SHORTEST_S,
    # Since gpt-5.5 the retention is 24 hours only. For older models it is the default of most organizations.
    "openai-chat": DAY_S,
    "openai-responses": DAY_S,
    "gemini": HOUR_S,
}
# OpenAI's models without retention for 24 hours: their prompts are in memory, for an hour at most.
_IN_MEMORY = re.compile(r"(?:.*/)?(?:gpt-4o|chatgpt-4o|o1|o3|o4|gpt-5-(?:mini|nano))(?:-.*)?")
_IN_MEMORY_S = HOUR_S
_TTL = re.compile(r"(\d{1,3})([mh])")


def find_cache_life_s(format: Format, model: str, request: Members, *, default_s: float | None = None) -> float:
    """The longest life of a request's prefix. `default_s` counts if the request does not say it."""
    if format == "anthropic":
        asked_s = HOUR_S if _has_hour_mark(request) else None
    elif format in ("openai-chat", "openai-responses"):
        asked_s = _life_asked_of_openai(request)
        if default_s is None and _IN_MEMORY.fullmatch(model.lower()):
            default_s = _IN_MEMORY_S
    else:
        asked_s = None
    return asked_s or (_USUAL_S[format] if default_s is None else default_s)


def find_life_in_usage(written_1h_tokens: int, warm_after_s: float) -> float:
    """The life that a response shows, or 0: tokens were written for an hour, or a prompt was read after a pause."""
    longer = [life_s for life_s in LIVES_S if life_s > warm_after_s]
    shown_s = min(longer, default=warm_after_s) if warm_after_s else 0.0
    return max(shown_s, HOUR_S if written_1h_tokens else 0.0)


def _has_hour_mark(request: Members) -> bool:
    """Whether any `cache_control` of the request, wherever it is, asks for an hour."""
    waiting: list[object] = [request]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            mark = value.get("cache_control")
            if isinstance(mark, Mapping) and mark.get("ttl") == "1h":
                return True
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return False


def _life_asked_of_openai(request: Members) -> float | None:
    """`prompt_cache_retention` is the longest life, `prompt_cache_options.ttl` only the shortest, from 30m to 12h."""
    retention = request.get("prompt_cache_retention")
    ttl = block_members(request.get("prompt_cache_options")).get("ttl")
    least = _TTL.fullmatch(ttl) if isinstance(ttl, str) else None
    least_s = int(least[1]) * (HOUR_S if least[2] == "h" else MINUTE_S) if least else 0.0
    if retention == "in_memory":
        return max(_IN_MEMORY_S, least_s)
    return max(DAY_S, least_s) if retention == "24h" or least_s else None
