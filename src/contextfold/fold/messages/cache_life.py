"""How long a provider keeps a prompt in its cache after its last use. Decided here and nowhere else.

It is decided from the request, from its model, and from what the provider's usage has shown in this conversation. Where
the documentation gives a range, or the model is not known, the longer life counts: a result that is left out of a warm
cache costs money, one that stays a while longer costs nothing that would not have been paid anyway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from contextfold.fold.messages.apis import Format
from contextfold.fold.messages.facts import Members, block_members

MINUTE_S, HOUR_S, DAY_S = 60.0, 3_600.0, 86_400.0
# No provider's cache has a shorter life, so a shorter pause needs no look at the request.
SHORTEST_S = 5 * MINUTE_S
# The lives that providers offer. What was still cached after a pause is taken to live for the next longer one.
LIVES_S = (SHORTEST_S, HOUR_S, DAY_S)


class CacheLife(NamedTuple):
    """How long some models' prompts are kept: usually, and by what a request may ask for."""

    apis: tuple[Format, ...]
    # A pattern of the models' names in lowercase.
    models: str
    usual_s: float
    asked_s: Mapping[str, float] = {}


_OPENAI: tuple[Format, ...] = ("openai-chat", "openai-responses")
# The first row that fits counts. From the providers' documents in November 2026: Anthropic's and Gemini's on prompt and
# context caching, OpenAI's on prompt caching and on `prompt_cache_retention`, the member that is asked for there. For
# Anthropic it is the `ttl` of a mark.
CACHE_LIVES = (
    CacheLife(("anthropic",), ".*", 5 * MINUTE_S, {"1h": HOUR_S}),
    # Prompts of these are only in memory, for an hour at most.
    CacheLife(_OPENAI, "(?:gpt-4o|chatgpt-4o|o1|o3|o4|gpt-5-(?:mini|nano))(?:-.*)?", HOUR_S, {"24h": DAY_S}),
    # Since gpt-5.5 there is no other retention.
    CacheLife(_OPENAI, r"gpt-(?:5\.(?:[5-9]|\d\d)|[6-9]|\d\d)(?:[.-].*)?", DAY_S),
    # For the models before, 24 hours are the default of most organizations.
    CacheLife(_OPENAI, ".*", DAY_S, {"in_memory": HOUR_S, "24h": DAY_S}),
    CacheLife(("gemini",), ".*", HOUR_S),
)
_TTL = re.compile(r"(\d{1,3})([mh])")


def find_cache_life_s(format: Format, model: str, request: Members, *, default_s: float | None = None) -> float:
    """The longest life of a request's prefix. `default_s` counts if the request does not say it."""
    name = model.lower().rpartition("/")[2]
    known = next(each for each in CACHE_LIVES if format in each.apis and re.fullmatch(each.models, name, re.DOTALL))
    if format == "anthropic":
        asked_s, least_s = known.asked_s["1h"] if _has_hour_mark(request) else 0.0, 0.0
    else:
        asked_s = known.asked_s.get(str(request.get("prompt_cache_retention")), 0.0)
        least_s = _least_life_s(request)
    if asked_s:
        return max(asked_s, least_s)
    if least_s:
        return max(DAY_S, least_s)
    return known.usual_s if default_s is None else default_s


def find_life_in_usage(written_1h_tokens: int, warm_after_s: float) -> float:
    """The life that a response shows, or 0: tokens were written for an hour, or a prompt was read after a pause."""
    longer = [life_s for life_s in LIVES_S if life_s > warm_after_s]
    shown_s = min(longer, default=warm_after_s) if warm_after_s else 0.0
    return max(shown_s, HOUR_S if written_1h_tokens else 0.0)


def _has_hour_mark(request: Members) -> bool:
    """Whether any `cache_control` of the request, wherever it is, asks for an hour."""
    waiting: list[object] = [dict(request)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if block_members(value.get("cache_control")).get("ttl") == "1h":
                return True
            waiting.extend(each for each in value.values() if isinstance(each, dict | list))
        elif isinstance(value, list):
            waiting.extend(each for each in value if isinstance(each, dict | list))
    return False


def _least_life_s(request: Members) -> float:
    """The shortest life that a request asks OpenAI for, from 30m to 12h; 0 if there is none."""
    ttl = block_members(request.get("prompt_cache_options")).get("ttl")
    least = _TTL.fullmatch(ttl) if isinstance(ttl, str) else None
    return int(least[1]) * (HOUR_S if least[2] == "h" else MINUTE_S) if least else 0.0
