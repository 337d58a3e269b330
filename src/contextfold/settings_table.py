"""The table of all settings: name, variable, default, rule, metavar and help of each.

Command-line options, environment variables, the configuration file, the help text, the reference and the records of
`contextfold.settings` derive from this table. It knows neither where a value comes from nor who uses it.
"""

from __future__ import annotations

from contextfold.common.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CACHE_ROOT = "CONTEXT_CACHE_ROOT"
TOOL_TIMEOUT = "CONTEXT_TOOL_TIMEOUT_SECS"
CONFIG = "CONTEXT_CONFIG"
COMMON_OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
COMMON_OTLP_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"

TOOL_TIMEOUT_S = 30
COUNTER_DEFAULT = "v0"
WHOLE_NUMBER_MAX = 1_000_000_000
# Eleven days; some systems accept no longer timeout.
TIMEOUT_MAX_S = 1_000_000
TOOLSETS = ("resolve", "fold")
# This toolset replaces `fold`. It has only the two tools for folding afterwards, a third of the definitions.
FOLD_AFTERWARDS = "fold-afterwards"
PREFIX_MAX = 32
DOMAIN_MAX = 64
_SMALL = "abcdefghijklmnopqrstuvwxyz0123456789-"
_PLAIN = _SMALL + _SMALL.upper() + "_"


class SettingsError(Exception):
    """A setting is invalid; the message is one line that says how to correct it."""


class Setting(Record):
    """One setting.

    The option is `--name`; in the configuration file and in records its dashes are underscores. `rule` checks and
    converts a text; its first argument is the name of the setting for error messages. `other_variable` is empty if the
    name of the variable follows from the name of the setting.
    """

    name: str
    default: str
    rule: Callable[[str, str], Any]
    metavar: str
    help: str
    other_variable: str = ""

    @property
    def variable(self) -> str:
        return self.other_variable or f"CONTEXT_{self.field.upper()}"

    @property
    def empty(self) -> Any:  # noqa: ANN401 - as `rule`
        """The value of a setting that is not given and has no default."""
        return () if self.rule in (_names, toolsets) else ""

    @property
    def field(self) -> str:
        """The name in the configuration file and in records."""
        return self.name.replace("-", "_")


def _any(_called: str, text: str) -> str:
    return text


def _not_empty(what_to_do: str) -> Callable[[str, str], str]:
    def rule(called: str, text: str) -> str:
        if not text:
            raise SettingsError(f"{called} is empty: {what_to_do}, or leave it out")
        return text

    return rule


_filled = _not_empty("give it a value")
# An empty name of a file is an error: a daemon that should use tokens must not start without them.
_named = _not_empty("name a file")


def _readable(called: str, text: str) -> str:
    try:
        with open(_named(called, text), "rb"):
            return text
    except OSError as problem:
        raise SettingsError(f"{called} names {text}, which cannot be read: {problem.strerror}") from None


def _words(letters: str, described: str, most: int) -> Callable[[str, str], str]:
    def rule(called: str, text: str) -> str:
        if not (text and len(text) <= most and set(letters).issuperset(text)):
            raise SettingsError(f"{called} must be 1 to {most} of {described}, not {text!r}")
        return text

    return rule


def _nats_prefix(called: str, text: str) -> str:
    """The first part of NATS subjects. With an empty prefix, subjects begin with the owner."""
    return text and _words(_SMALL, "lowercase letters, digits and dashes", PREFIX_MAX)(called, text)


def _names(_called: str, text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _switch(called: str, text: str) -> bool:
    if text not in ("on", "off"):
        raise SettingsError(f"{called} must be on or off, not {text!r}")
    return text == "on"


def _fold_results(called: str, text: str) -> str:
    if text not in ("off", "cold"):
        raise SettingsError(f"{called} is {text!r}: give off or cold")
    return text


def is_http_url(text: str) -> bool:
    scheme, separator, rest = text.partition("://")
    host = rest.partition("/")[0]
    return scheme in ("http", "https") and bool(separator and host) and "@" not in host and text.isprintable()


def _url_or_off(called: str, text: str) -> str:
    if text != "off" and not is_http_url(text):
        raise SettingsError(f"{called} must be off, or a URL such as http://localhost:4318, without a user")
    return text


def _upstream(called: str, text: str) -> str:
    """A base URL: paths are appended to it, so it must not have a query or a fragment."""
    # Most commands need no address.
    from contextfold.common.network_address import authority_from

    scheme, separator, rest = text.partition("://")
    text = scheme.lower() + separator + rest
    host = rest.partition("/")[0]
    is_plain = text.isascii() and not set(text) & set(' ?#\\%"<>^`{|}')
    has_dot_segments = not {".", ".."}.isdisjoint(text.split("/"))
    if not (is_http_url(text) and is_plain and authority_from(host)) or has_dot_segments:
        raise SettingsError(
            f"{called} must be a URL such as https://api.example.org/v1: http or https, a host, perhaps a port and a "
            "path; no user, no query, no fragment"
        )
    return text.rstrip("/")


def offers_folding(tools: tuple[str, ...]) -> bool:
    """Whether one of the chosen sets has tools for folding."""
    return "fold" in tools or FOLD_AFTERWARDS in tools


def toolsets(called: str, text: str) -> tuple[str, ...]:
    """The names of toolsets in a list of them. `called` is how the user gave it."""
    names = text.split(",")
    known = (*TOOLSETS, FOLD_AFTERWARDS)
    is_twice = len(set(names)) != len(names) or {"fold", FOLD_AFTERWARDS} <= set(names)
    if is_twice or not set(names) <= set(known):
        raise SettingsError(
            f"{called} must be resolve, fold, fold-afterwards or resolve and one of these, not {text!r}"
        )
    return tuple(name for name in known if name in names)


def _counter(called: str, text: str) -> str:
    if text == COUNTER_DEFAULT:
        return text
    from contextfold.common.token_counter import COUNTERS

    if text not in COUNTERS:
        raise SettingsError(f"{called} must be one of {', '.join(COUNTERS)}, not {text!r}")
    return text


def between(least: int, most: int) -> Callable[[str, str], int]:
    def rule(called: str, text: str) -> int:
        digits = text.lstrip("0") or "0"
        if not (text.isascii() and text.isdigit()) or len(digits) > len(str(most)) or not least <= int(digits) <= most:
            raise SettingsError(f"{called} must be a whole number from {least} to {most}, not {text!r}")
        return int(digits)

    return rule


def _seconds(called: str, text: str) -> int:
    digits = text.removeprefix("+").lstrip("0")
    if not (text.isascii() and digits.isdigit()):
        raise SettingsError(f"{called} must be a positive whole number of seconds, not {text!r}")
    return int(digits) if len(digits) < len(str(TIMEOUT_MAX_S)) else TIMEOUT_MAX_S


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("cache-root", "", _any, "DIR", "the folder that contains the caches"),
        Setting("tool-timeout-secs", str(TOOL_TIMEOUT_S), _seconds, "N", "the timeout of a resolve call"),
        Setting(
            "tools",
            "",
            toolsets,
            "LIST",
            "the tools: resolve, fold or resolve,fold; fold-afterwards has context_fold and context_expand only",
        ),
        Setting("host", "127.0.0.1", _any, "ADDRESS", "the address to listen on"),
        Setting("port", "9090", between(0, 65_535), "N", "the port to listen on; 0 takes a free one"),
        Setting(
            "token-file",
            "",
            _named,
            "FILE",
            "the file of owners and token hashes; required for any address but loopback",
        ),
        Setting(
            "allow-host", "", _names, "NAMES", "further names of this machine that clients may use, separated by commas"
        ),
        Setting("store", "", _named, "STORE", "the store of the folding state: a file, or nats://HOST:PORT,…"),
        Setting(
            "context-limit",
            "0",
            between(0, WHOLE_NUMBER_MAX),
            "N",
            "the size of a context in tokens; 0: the model's window, or 32768 where it is not known",
            "CONTEXT_LIMIT_TOKENS",
        ),
        Setting("hard-limit", "off", _switch, "on|off", "whether a branch beyond the context limit is refused"),
        Setting("branch-depth", "8", between(1, 64), "N", "how deep branches may nest"),
        Setting("branches-per-session", "1000", between(1, 10_000), "N", "the maximum number of branches in a session"),
        Setting(
            "branch-limit-tokens",
            "0",
            between(0, WHOLE_NUMBER_MAX),
            "N",
            "the size in tokens from which a branch is asked to return; 0: half of the context",
        ),
        Setting(
            "branch-reminder",
            "on",
            _switch,
            "on|off",
            "whether tool results and hook answers advise when to return or fold, each advice once",
        ),
        Setting(
            "recall-at-start",
            "off",
            _switch,
            "on|off",
            "whether the hook for a session's first prompt names up to three earlier folds of the project that fit it",
        ),
        Setting(
            "warn-medium-percent",
            "50",
            between(0, 100),
            "N",
            "the warning is medium above this percentage of the limit on the main thread",
        ),
        Setting(
            "warn-high-percent",
            "70",
            between(0, 100),
            "N",
            "the warning is high above this percentage of the limit on the main thread",
        ),
        Setting(
            "price-cache-read-percent",
            "10",
            between(0, 1_000),
            "N",
            "the price of a token read from a provider's cache, as a percentage of an input token's; this one and "
            "the following ones are for models without known prices",
        ),
        Setting(
            "price-cache-write-percent",
            "125",
            between(0, 1_000),
            "N",
            "the price of a token written to a provider's cache for 5 minutes, in percent of an input token's",
        ),
        Setting(
            "price-cache-write-1h-percent",
            "200",
            between(0, 1_000),
            "N",
            "the price of a token written to a provider's cache for one hour, as a percentage of an input token's",
        ),
        Setting(
            "price-output-percent",
            "500",
            between(0, 10_000),
            "N",
            "the price of a token of a response, as a percentage of an input token's",
        ),
        Setting(
            "models-file",
            "",
            _named,
            "FILE",
            "a TOML file of models' windows and prices, which adds to the built-in list or overrides it",
        ),
        Setting("token-counter", COUNTER_DEFAULT, _counter, "NAME", "the token counter: v0 or dense"),
        Setting(
            "session-idle-secs",
            str(24 * 3600),
            between(1, WHOLE_NUMBER_MAX),
            "N",
            "seconds without activity after which a session ends",
        ),
        Setting("archive-days", "30", between(1, 36_500), "N", "days after which trajectories are deleted"),
        Setting("summary-days", "365", between(1, 36_500), "N", "days after which summaries are deleted"),
        Setting("scrub-allowlist", "", _named, "FILE", "a file of values that are not secrets"),
        Setting(
            "rate-per-second",
            "2000",
            between(1, WHOLE_NUMBER_MAX),
            "N",
            "calls that an owner may make per second in the long run",
        ),
        Setting("rate-burst", "4000", between(1, WHOLE_NUMBER_MAX), "N", "calls that an owner may make at once"),
        Setting("requests-max", "256", between(1, 100_000), "N", "requests that are answered at a time"),
        Setting("body-max-bytes", str(4 << 20), between(1024, 1 << 30), "N", "the largest body of a request"),
        Setting(
            "anthropic-upstream",
            "https://api.anthropic.com",
            _upstream,
            "URL",
            "where requests to /proxy/anthropic go, as in ANTHROPIC_BASE_URL",
        ),
        Setting(
            "openai-upstream",
            "https://api.openai.com/v1",
            _upstream,
            "URL",
            "where requests to /proxy/openai/v1 go, as in OPENAI_BASE_URL",
        ),
        Setting(
            "gemini-upstream",
            "https://generativelanguage.googleapis.com",
            _upstream,
            "URL",
            "where requests to /proxy/gemini go, as in GOOGLE_GEMINI_BASE_URL",
        ),
        Setting(
            "fold-results",
            "cold",
            _fold_results,
            "off|cold",
            "whether the proxy leaves old tool results out once the provider's prompt cache has lapsed",
        ),
        Setting(
            "prompt-cache-s",
            "0",
            between(0, 604_800),
            "N",
            "seconds that a provider keeps a prompt cached where the request does not say it; 0: as it documents",
        ),
        Setting(
            "proxy-body-max-bytes", str(512 << 20), between(1024, 1 << 40), "N", "the largest body of a proxied request"
        ),
        Setting(
            "otlp-endpoint",
            "",
            _url_or_off,
            "URL",
            f"where traces are sent (OTLP over HTTP); off: nowhere (default: {COMMON_OTLP_ENDPOINT})",
        ),
        Setting(
            "nats-prefix",
            "contextfold",
            _nats_prefix,
            "NAME",
            "the first part of streams and subjects on NATS, which separates installations; may be empty",
        ),
        Setting(
            "nats-domain", "", _words(_PLAIN, "letters, digits, - and _", DOMAIN_MAX), "NAME", "the JetStream domain"
        ),
        Setting(
            "nats-replicas",
            "0",
            between(0, 5),
            "N",
            "replicas of each stream; 0: one for a new stream, and an existing one is not changed",
        ),
        Setting("nats-creds", "", _readable, "FILE", "a file of credentials for NATS"),
        Setting("nats-nkey", "", _readable, "FILE", "a file with the seed of an nkey for NATS"),
        Setting("nats-user", "", _filled, "NAME", "the user on NATS"),
        Setting(
            "nats-password-file", "", _readable, "FILE", "a file whose first line is the password of the user on NATS"
        ),
        Setting("nats-tls-ca", "", _readable, "FILE", "a file of the certificate authorities of NATS servers"),
        Setting("nats-tls-cert", "", _readable, "FILE", "a file with our certificate for NATS servers"),
        Setting("nats-tls-key", "", _readable, "FILE", "a file with the key of our certificate for NATS servers"),
    )
}
NATS = tuple(name for name in SETTINGS if name.startswith("nats-"))
