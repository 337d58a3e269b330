"""Facts about models as data: context windows, prices of tokens, and the sizes of hosts' prompts.

Every figure has its source and the date on which it was read. A user's file may add models and replace figures
(`models-file` in the settings; `parse_models`). A model is found by its exact name or by that name with a date, as in
`claude-opus-4-5-20251101`, and with what gateways add, as in `us.anthropic.claude-opus-4-5-20251101-v1:0`. Never by the
beginning of its name: `claude-fable-5-2` is another model than `claude-fable-5`, with other prices.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

CONTEXT_TOKENS_UNKNOWN = 32_768
TOKENS_PER_MILLION = 1_000_000
# A price is an integer: a thousand times the dollars for a million tokens.
PRICE_UNITS_PER_DOLLAR = 1_000 * TOKENS_PER_MILLION
MILLION_CONTEXT = "[1m]"
_MILLION_CONTEXT_TOKENS = 1_000_000
# What may follow a model's name: its date, and the version that Amazon Bedrock adds.
_DATED = re.compile(r"(.+?)(?:[-@](?:20\d{6}|20\d\d-\d\d-\d\d))?(?:-v\d+(?::\d+)?)?", re.DOTALL)
# The lengths of a region's name before a model's, as in `us.anthropic.claude-opus-4-5`.
_REGION_LENGTHS = range(2, 5)


class TokenPrices(NamedTuple):
    """The prices of one token of each kind, in units of 1 / PRICE_UNITS_PER_DOLLAR or relative to each other."""

    input: int
    output: int
    cache_read: int
    cache_write_5m: int
    cache_write_1h: int


# The usual ratios, for a model with unknown prices, in hundredths of an input token.
RELATIVE_PRICES = TokenPrices(100, 500, 10, 125, 200)


class ModelFacts(NamedTuple):
    name: str
    context_tokens: int | None = None
    # In thousandths of a dollar for a million tokens; None if unknown.
    prices: TokenPrices | None = None
    read_on: str = ""
    source: str = ""


class ModelCatalog(NamedTuple):
    models: tuple[ModelFacts, ...]

    def find(self, model: str) -> ModelFacts | None:
        """The facts about a model by its name in requests; None if it is not known."""
        name = plain_name(model).removesuffix(MILLION_CONTEXT)
        dated = _DATED.fullmatch(name)
        names = (name, dated[1] if dated else name)
        known = [facts for facts in self.models if facts.name in names]
        # A user's own entry may have the date in its name.
        return max(known, key=lambda facts: len(facts.name), default=None)

    def context_tokens(self, model: str) -> int | None:
        if model.lower().endswith(MILLION_CONTEXT):
            return _MILLION_CONTEXT_TOKENS
        facts = self.find(model)
        return facts.context_tokens if facts else None

    def prices(self, model: str) -> TokenPrices | None:
        facts = self.find(model)
        return facts.prices if facts else None

    def with_models(self, models: Sequence[ModelFacts]) -> "ModelCatalog":
        """A catalog with these models first. Facts that they lack are taken from the entry of the same name."""
        known = {facts.name: facts for facts in self.models}
        for facts in models:
            before = known.get(facts.name, facts)
            known[facts.name] = ModelFacts(
                facts.name,
                facts.context_tokens or before.context_tokens,
                facts.prices or before.prices,
                facts.read_on,
                facts.source,
            )
        return ModelCatalog(tuple(known.values()))


def plain_name(model: str) -> str:
    """A model's name in lowercase without what gateways put before it: a path, a region, `anthropic.`."""
    first, newline, rest = model.lower().partition("\n")
    name = first.rpartition("/")[2]
    region, dot, after = name.partition(".")
    if dot and len(region) in _REGION_LENGTHS and region.isascii() and region.isalpha():
        name = after
    return name.removeprefix("anthropic.") + newline + rest


class ModelsInvalid(ValueError):
    """A user's list of models is invalid; the message says why."""


def parse_models(tables: Mapping[str, object]) -> list[ModelFacts]:
    """Parse a user's file: `[models."NAME"]` with `context_tokens` and prices in dollars for a million tokens."""
    models = tables.get("models")
    if not isinstance(models, dict) or tables.keys() != {"models"}:
        raise ModelsInvalid('must hold tables [models."NAME"] and nothing else')
    return [_parse_model(str(name), members) for name, members in models.items()]


def _parse_model(name: str, members: object) -> ModelFacts:
    if not isinstance(members, dict) or not name.strip():
        raise ModelsInvalid(f"{name!r} must be a table")
    rest = dict(members)
    window = rest.pop("context_tokens", None)
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ModelsInvalid(f"{name}: context_tokens must be a whole number above 0")
    read_on, source = str(rest.pop("read_on", "")), str(rest.pop("source", ""))
    if not rest:
        return ModelFacts(name.lower(), window, None, read_on, source)
    if not {"input", "output"} <= rest.keys() or not rest.keys() <= set(_PRICE_NAMES):
        raise ModelsInvalid(f"{name}: prices are input and output, and may be {', '.join(_PRICE_NAMES[2:])}")
    for kind, price in rest.items():
        if isinstance(price, bool) or not isinstance(price, int | float) or not 0 <= price <= _PRICE_MAX:
            raise ModelsInvalid(f"{name}: {kind} must be a price in dollars from 0 to {_PRICE_MAX}")
    prices = _prices(rest["input"], rest["output"], *(rest.get(kind) for kind in _PRICE_NAMES[2:]))
    return ModelFacts(name.lower(), window, prices, read_on, source)


_PRICE_NAMES = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
_PRICE_MAX = 100_000


def _prices(input: float, output: float, *cached: float | None) -> TokenPrices:
    """Prices in dollars for a million tokens. By default, cached tokens have the price of input tokens."""
    others = (input if price is None else price for price in (*cached, None, None, None)[:3])
    return TokenPrices(*(round(price * 1_000) for price in (input, output, *others)))


def _claude(
    name: str,
    window: int,
    input: float,
    *,
    read: float = 0.1,
    read_on: str = "2026-10-10",
    source: str = "platform.claude.com/docs/en/about-claude/pricing",
) -> ModelFacts:
    """Claude models: an output token costs five input tokens, a cache write 1.25 or 2 of them."""
    prices = _prices(input, 5 * input, read * input, 1.25 * input, 2 * input)
    return ModelFacts(name, window, prices, read_on, source)


def _openai(name: str, window: int, input: float, cached: float, output: float) -> ModelFacts:
    """OpenAI models: writing to the cache costs nothing beyond the input price."""
    prices = _prices(input, output, cached)
    return ModelFacts(name, window, prices, "2026-06-30", "developers.openai.com/api/docs/pricing")


def _newer_openai(name: str, input: float, output: float, *, read: float = 0.1) -> ModelFacts:
    """OpenAI's models since GPT-5.6, prompts up to 272,000 tokens: a cache write costs 1.25. Read second-hand."""
    prices = _prices(input, output, read * input, 1.25 * input, 1.25 * input)
    return ModelFacts(name, 922_000, prices, "2026-10-13", "developers.openai.com/api/docs/pricing, by others' notes")


def _gemini(name: str, input: float, cached: float, output: float) -> ModelFacts:
    """Gemini models, prompts up to 200,000 tokens. Read second-hand."""
    prices = _prices(input, output, cached)
    source = "ai.google.dev/gemini-api/docs/pricing, by others' notes"
    return ModelFacts(name, 1_048_576, prices, "2026-11-16", source)


# The window of a Claude model is its default; the suffix `[1m]` of a name requests a million tokens.
MODELS = ModelCatalog(
    (
        _claude(
            *("claude-fable-5-2", 1_000_000, 8),
            read=0.025,
            read_on="2026-11-16",
            source="third-party pages; the window is that of claude-fable-5-1",
        ),
        _claude("claude-fable-5-1", 1_000_000, 10, read=0.025),
        _claude("claude-mythos-5-1", 1_000_000, 10, read=0.025),
        _claude("claude-fable-5", 1_000_000, 10),
        _claude("claude-mythos-5", 1_000_000, 10),
        _claude("claude-opus-5-5", 1_000_000, 4, read=0.05),
        _claude("claude-opus-5", 1_000_000, 5),
        _claude("claude-opus-4-8", 200_000, 5),
        _claude("claude-opus-4-7", 200_000, 5),
        _claude("claude-opus-4-6", 200_000, 5),
        _claude("claude-opus-4-5", 200_000, 5),
        _claude("claude-opus-4-1", 200_000, 15),
        _claude("claude-opus-4-0", 200_000, 15),
        _claude("claude-opus-4", 200_000, 15),
        _claude("claude-3-opus", 200_000, 15),
        _claude("claude-sonnet-5-5", 1_000_000, 2, read=0.05),
        _claude("claude-sonnet-5", 1_000_000, 2),
        _claude("claude-sonnet-4-6", 200_000, 3),
        _claude("claude-sonnet-4-5", 200_000, 3),
        _claude("claude-sonnet-4-0", 200_000, 3),
        _claude("claude-sonnet-4", 200_000, 3),
        _claude("claude-3-7-sonnet", 200_000, 3),
        _claude("claude-3-5-sonnet", 200_000, 3),
        # Prompts up to 100,000 tokens; longer ones cost five times as much.
        _claude("claude-haiku-5-5", 1_000_000, 0.1),
        _claude("claude-haiku-4-5", 200_000, 1),
        _claude("claude-3-5-haiku", 200_000, 0.8),
        _newer_openai("gpt-6.1-sol", 2, 10, read=0.05),
        _newer_openai("gpt-6-astra", 10, 50),
        _newer_openai("gpt-6-sol", 2, 10),
        _newer_openai("gpt-6-luna", 0.1, 0.5),
        _newer_openai("gpt-5.6", 4, 20),
        _newer_openai("gpt-5.6-terra", 2, 12),
        _newer_openai("gpt-5.6-luna", 0.2, 1.2),
        _openai("gpt-5.5", 1_000_000, 5, 0.5, 30),
        _openai("gpt-5.4", 1_000_000, 2.5, 0.25, 15),
        _openai("gpt-5.4-mini", 1_000_000, 0.75, 0.075, 4.5),
        _openai("gpt-5.4-nano", 1_000_000, 0.2, 0.02, 1.25),
        _openai("gpt-5", 272_000, 1.25, 0.125, 10),
        _openai("gpt-5-mini", 272_000, 0.25, 0.025, 2),
        _openai("gpt-5-nano", 272_000, 0.05, 0.005, 0.4),
        _openai("gpt-4.1", 1_000_000, 2, 0.5, 8),
        _openai("gpt-4.1-mini", 1_000_000, 0.4, 0.1, 1.6),
        _openai("gpt-4.1-nano", 1_000_000, 0.1, 0.025, 0.4),
        _openai("gpt-4o", 128_000, 2.5, 1.25, 10),
        _openai("gpt-4o-mini", 128_000, 0.15, 0.075, 0.6),
        _openai("o3", 200_000, 2, 0.5, 8),
        _openai("o4-mini", 200_000, 1.1, 0.275, 4.4),
        _gemini("gemini-3.5-flash", 1.5, 0.15, 9),
        _gemini("gemini-3.1-pro", 2, 0.2, 12),
        _gemini("gemini-3.1-pro-preview", 2, 0.2, 12),
        _gemini("gemini-3.1-flash-lite", 0.25, 0.025, 1.5),
        _gemini("gemini-3-pro", 2, 0.2, 12),
        _gemini("gemini-3-pro-preview", 2, 0.2, 12),
        _gemini("gemini-3-flash", 0.5, 0.05, 3),
        _gemini("gemini-3-flash-preview", 0.5, 0.05, 3),
        _gemini("gemini-2.5-pro", 1.25, 0.125, 10),
        _gemini("gemini-2.5-flash", 0.3, 0.03, 2.5),
        _gemini("gemini-2.5-flash-lite", 0.1, 0.01, 0.4),
    )
)

# The measured size of a host's own prompt and tools. Requests through the proxy include it, so it is subtracted only if
# there was no request. Claude Code has 21,000 to 26,000 tokens, measured in 2026.
HOST_TOKENS: Mapping[str, int] = {"claude-code": 26_000}


class LedgerPrices(NamedTuple):
    """The prices of known models, and relative prices for all others."""

    models: ModelCatalog = MODELS
    relative: TokenPrices = RELATIVE_PRICES

    def of(self, model: str) -> tuple[TokenPrices, bool]:
        """A model's prices, and whether they are in money."""
        known = self.models.prices(model)
        return (known, True) if known is not None and known.input else (self.relative, False)
