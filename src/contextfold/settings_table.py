"""Every setting, as data: what it is called, what it is if nobody says, the rule it keeps, and a line about it.

Knows names and rules, not where a value comes from (`contextfold.settings`) nor who uses it.
"""

from __future__ import annotations

from contextfold.common.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

CACHE_ROOT = "CONTEXT_CACHE_ROOT"
TOOL_TIMEOUT = "CONTEXT_TOOL_TIMEOUT_SECS"
CONFIG = "CONTEXT_CONFIG"
COMMON_OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
COMMON_OTLP_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"

TOOL_TIMEOUT_S = 30
WHOLE_NUMBER_MAX = 1_000_000_000
TIMEOUT_MAX_S = 1_000_000  # eleven days; a longer wait is no timeout, and systems count no further
TOOLSETS = ("resolve", "fold")
PREFIX_MAX = 32
DOMAIN_MAX = 64
PORT_MAX, PORT_DIGITS = 65_535, 5
_SMALL = "abcdefghijklmnopqrstuvwxyz0123456789-"
_PLAIN = _SMALL + _SMALL.upper() + "_"


class SettingsError(Exception):
    """A setting that cannot be used; the text is one line that says what to do."""


class Setting(Record):
    name: str  # of the flag, and in the configuration file with underscores
    variable: str
    default: str
    rule: Callable[[str, str], object]  # (what it is called, text) → value
    help: str


def _any(_called: str, text: str) -> str:
    return text


def _named(called: str, text: str) -> str:
    """Empty is not the same as not given: a daemon meant to ask for tokens must not start without."""
    if not text:
        raise SettingsError(f"{called} is empty: name a file, or leave it out")
    return text


def _filled(called: str, text: str) -> str:
    if not text:
        raise SettingsError(f"{called} is empty: give it a value, or leave it out")
    return text


def _readable(called: str, text: str) -> str:
    try:
        with open(_named(called, text), "rb"):
            return text
    except OSError as problem:
        raise SettingsError(f"{called} names {text}, which cannot be read: {problem.strerror}") from None


def _words(letters: str, told: str, most: int) -> Callable[[str, str], str]:
    def rule(called: str, text: str) -> str:
        if not (text and len(text) <= most and set(letters).issuperset(text)):
            raise SettingsError(f"{called} must be 1 to {most} of {told}, not {text!r}")
        return text

    return rule


def _switch(called: str, text: str) -> str:
    if text not in ("on", "off"):
        raise SettingsError(f"{called} must be on or off, not {text!r}")
    return text


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
    """A base URL: what is asked for below it is added as it comes, so nothing may stand behind the path."""
    scheme, separator, rest = text.partition("://")
    text = scheme.lower() + separator + rest
    host = rest.partition("/")[0]
    is_plain = text.isascii() and not set(text) & set(' ?#\\%"<>^`{|}')
    if not (is_http_url(text) and is_plain and _is_authority(host) and not _leads_away(text)):
        raise SettingsError(
            f"{called} must be a URL such as https://api.example.org/v1: http or https, a host, perhaps a port and a "
            "path; no user, no query, no fragment"
        )
    return text.rstrip("/")


def _is_authority(text: str) -> bool:
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        host = text
    elif not (port.isdigit() and 0 < int(port[:PORT_DIGITS]) <= PORT_MAX and len(port) <= PORT_DIGITS):
        return False
    if host.startswith("[") and host.endswith("]"):
        return bool(host[1:-1]) and set(host[1:-1].lower()) <= set("0123456789abcdef:.")
    return bool(host) and set(host) <= set(f"{_PLAIN}.")


def _leads_away(text: str) -> bool:
    return not {".", ".."}.isdisjoint(text.split("/"))


def _toolsets(called: str, text: str) -> str:
    names = text.split(",")
    if not set(names) <= set(TOOLSETS) or len(set(names)) != len(names):
        raise SettingsError(f"{called} must be resolve, fold or resolve,fold, not {text!r}")
    return ",".join(name for name in TOOLSETS if name in names)


def _counter(called: str, text: str) -> str:
    from contextfold.common.token_counter import COUNTERS

    if text not in COUNTERS:
        raise SettingsError(f"{called} must be one of {', '.join(COUNTERS)}, not {text!r}")
    return text


def between(least: int, most: int) -> Callable[[str, str], str]:
    def rule(called: str, text: str) -> str:
        digits = text.lstrip("0") or "0"
        if not (text.isascii() and text.isdigit()) or len(digits) > len(str(most)) or not least <= int(digits) <= most:
            raise SettingsError(f"{called} must be a whole number from {least} to {most}, not {text!r}")
        return digits

    return rule


def _seconds(called: str, text: str) -> str:
    digits = text.removeprefix("+").lstrip("0")
    if not (text.isascii() and digits.isdigit()):
        raise SettingsError(f"{called} must be a positive whole number of seconds, not {text!r}")
    return digits if len(digits) < len(str(TIMEOUT_MAX_S)) else str(TIMEOUT_MAX_S)


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("cache-root", CACHE_ROOT, "", _any, "the folder that holds the caches"),
        Setting("tool-timeout-secs", TOOL_TIMEOUT, str(TOOL_TIMEOUT_S), _seconds, "how long a resolve call may take"),
        Setting("tools", "CONTEXT_TOOLS", "", _toolsets, "which tools to offer: resolve, fold or resolve,fold"),
        Setting("host", "CONTEXT_HOST", "127.0.0.1", _any, "the address to listen on"),
        Setting("port", "CONTEXT_PORT", "9090", between(0, 65_535), "the port to listen on; 0 takes a free one"),
        Setting("token-file", "CONTEXT_TOKEN_FILE", "", _named, "who may call: owners and the hashes of their tokens"),
        Setting("allow-host", "CONTEXT_ALLOW_HOST", "", _any, "further names clients may call this machine by"),
        Setting("store", "CONTEXT_STORE", "", _named, "what holds the folding state: a file, or nats://HOST:PORT,…"),
        Setting("context-limit", "CONTEXT_LIMIT_TOKENS", "32768", between(1, WHOLE_NUMBER_MAX), "tokens of a context"),
        Setting("hard-limit", "CONTEXT_HARD_LIMIT", "off", _switch, "whether a branch beyond the limit is refused"),
        Setting("branch-depth", "CONTEXT_BRANCH_DEPTH", "8", between(1, 64), "how deep branches may nest"),
        Setting(
            "branches-per-session",
            "CONTEXT_BRANCHES_PER_SESSION",
            "1000",
            between(1, 10_000),
            "how many branches a session may have",
        ),
        Setting(
            "branch-limit-tokens",
            "CONTEXT_BRANCH_LIMIT_TOKENS",
            "0",
            between(0, WHOLE_NUMBER_MAX),
            "at so many tokens a branch is asked to return; 0: half of the context",
        ),
        Setting(
            "branch-reminder",
            "CONTEXT_BRANCH_REMINDER",
            "on",
            _switch,
            "whether results and hooks' answers tell of the open branch, in a line",
        ),
        Setting(
            "warn-medium-percent",
            "CONTEXT_WARN_MEDIUM_PERCENT",
            "50",
            between(0, 100),
            "above this share of the limit on the main thread the warning is medium",
        ),
        Setting(
            "warn-high-percent", "CONTEXT_WARN_HIGH_PERCENT", "70", between(0, 100), "and above this one it is high"
        ),
        Setting(
            "price-cache-read-percent",
            "CONTEXT_PRICE_CACHE_READ_PERCENT",
            "10",
            between(0, 1_000),
            "what a token read from a provider's cache costs, in hundredths of an input token",
        ),
        Setting(
            "price-cache-write-percent",
            "CONTEXT_PRICE_CACHE_WRITE_PERCENT",
            "125",
            between(0, 1_000),
            "and one written there",
        ),
        Setting("token-counter", "CONTEXT_TOKEN_COUNTER", "v0", _counter, "how tokens are counted: v0 or dense"),
        Setting(
            "session-idle-secs",
            "CONTEXT_SESSION_IDLE_SECS",
            str(24 * 3600),
            between(1, WHOLE_NUMBER_MAX),
            "a session ends after this long without activity",
        ),
        Setting("archive-days", "CONTEXT_ARCHIVE_DAYS", "30", between(1, 36_500), "how long trajectories are kept"),
        Setting("summary-days", "CONTEXT_SUMMARY_DAYS", "365", between(1, 36_500), "how long summaries are kept"),
        Setting("scrub-allowlist", "CONTEXT_SCRUB_ALLOWLIST", "", _named, "a file of values that are no secrets"),
        Setting(
            "rate-per-second",
            "CONTEXT_RATE_PER_SECOND",
            "2000",
            between(1, WHOLE_NUMBER_MAX),
            "calls an owner may make per second, in the long run",
        ),
        Setting("rate-burst", "CONTEXT_RATE_BURST", "4000", between(1, WHOLE_NUMBER_MAX), "and at once"),
        Setting("requests-max", "CONTEXT_REQUESTS_MAX", "256", between(1, 100_000), "requests answered at a time"),
        Setting(
            "body-max-bytes",
            "CONTEXT_BODY_MAX_BYTES",
            str(4 << 20),
            between(1024, 1 << 30),
            "the largest request that is read",
        ),
        Setting(
            "anthropic-upstream",
            "CONTEXT_ANTHROPIC_UPSTREAM",
            "https://api.anthropic.com",
            _upstream,
            "where requests to /proxy/anthropic go, as in ANTHROPIC_BASE_URL",
        ),
        Setting(
            "openai-upstream",
            "CONTEXT_OPENAI_UPSTREAM",
            "https://api.openai.com/v1",
            _upstream,
            "where requests to /proxy/openai/v1 go, as in OPENAI_BASE_URL",
        ),
        Setting(
            "gemini-upstream",
            "CONTEXT_GEMINI_UPSTREAM",
            "https://generativelanguage.googleapis.com",
            _upstream,
            "where requests to /proxy/gemini go",
        ),
        Setting(
            "fold-results",
            "CONTEXT_FOLD_RESULTS",
            "cold",
            _fold_results,
            "whether the proxy leaves old tool results out once the provider's prompt cache has lapsed: off or cold",
        ),
        Setting(
            "prompt-cache-s",
            "CONTEXT_PROMPT_CACHE_S",
            "0",
            between(0, 604_800),
            "seconds that a provider keeps a prompt cached where the request does not say it; 0: as it documents",
        ),
        Setting(
            "proxy-body-max-bytes",
            "CONTEXT_PROXY_BODY_MAX_BYTES",
            str(512 << 20),
            between(1024, 1 << 40),
            "the largest request that is passed on",
        ),
        Setting(
            "otlp-endpoint",
            "CONTEXT_OTLP_ENDPOINT",
            "",
            _url_or_off,
            f"where traces go (OTLP over HTTP), {COMMON_OTLP_ENDPOINT} if not given; off: nowhere",
        ),
        Setting(
            "nats-prefix",
            "CONTEXT_NATS_PREFIX",
            "contextfold",
            _words(_SMALL, "lowercase letters, digits and dashes", PREFIX_MAX),
            "what streams and subjects on NATS begin with, apart from other installations",
        ),
        Setting(
            "nats-domain",
            "CONTEXT_NATS_DOMAIN",
            "",
            _words(_PLAIN, "letters, digits, - and _", DOMAIN_MAX),
            "the JetStream domain",
        ),
        Setting(
            "nats-replicas",
            "CONTEXT_NATS_REPLICAS",
            "0",
            between(0, 5),
            "servers that keep each stream; 0: one for a new stream, and an existing one stays as it is",
        ),
        Setting("nats-creds", "CONTEXT_NATS_CREDS", "", _readable, "a file of credentials for NATS"),
        Setting("nats-nkey", "CONTEXT_NATS_NKEY", "", _readable, "a file with the seed of an nkey for NATS"),
        Setting("nats-user", "CONTEXT_NATS_USER", "", _filled, "the user on NATS"),
        Setting(
            "nats-password-file",
            "CONTEXT_NATS_PASSWORD_FILE",
            "",
            _readable,
            "a file whose first line is the user's password",
        ),
        Setting(
            "nats-tls-ca",
            "CONTEXT_NATS_TLS_CA",
            "",
            _readable,
            "a file of the authorities that NATS servers' certificates are from",
        ),
        Setting(
            "nats-tls-cert",
            "CONTEXT_NATS_TLS_CERT",
            "",
            _readable,
            "a file with our certificate, where NATS servers ask for one",
        ),
        Setting("nats-tls-key", "CONTEXT_NATS_TLS_KEY", "", _readable, "a file with its key"),
    )
}
NATS = tuple(name for name in SETTINGS if name.startswith("nats-"))
