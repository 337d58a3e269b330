"""What a server may be told from outside, checked and named in one place: flag, then variable, then file, then default.

The only reader of the environment and of the configuration file. Knows names and rules, not who uses them.
"""

from __future__ import annotations

import os

from contextfold.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CACHE_ROOT = "CONTEXT_CACHE_ROOT"
TOOL_TIMEOUT = "CONTEXT_TOOL_TIMEOUT_SECS"
CONFIG = "CONTEXT_CONFIG"
COMMON_OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
COMMON_OTLP_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"

TOOL_TIMEOUT_S = 30
WHOLE_NUMBER_MAX = 1_000_000_000
TIMEOUT_MAX_S = 1_000_000  # eleven days; a longer wait is no timeout, and systems count no further
TOOLSETS = ("resolve", "fold")
STORE_SCHEME = "sqlite:"


class SettingsError(Exception):
    """A setting that cannot be used; the text is one line that says what to do."""


class Setting(Record):
    name: str  # of the flag, and in the configuration file with underscores
    variable: str
    default: str
    rule: Callable[[str, str], object]  # (what it is called, text) → value
    help: str


class Settings(Record):
    """Of a server on stdin and stdout."""

    cache_root: bytes
    tool_timeout_s: int
    tools: tuple[str, ...] = ("resolve",)
    fold: FoldSettings | None = None


class FoldSettings(Record):
    """Of folding, on any transport."""

    store: str
    context_limit: int
    hard_limit: bool
    branch_depth: int
    branches_per_session: int
    warn_medium_percent: int
    warn_high_percent: int
    token_counter: str
    session_idle_secs: int
    archive_days: int
    summary_days: int
    scrub_allowlist: str


class DaemonSettings(Record):
    """Of the daemon."""

    server: Settings
    fold: FoldSettings
    host: str
    port: int
    token_file: str
    allow_hosts: tuple[str, ...]
    rate_per_second: int
    rate_burst: int
    requests_max: int
    body_max_bytes: int
    otlp_endpoint: str = ""  # no traces if empty
    otlp_is_asked_for: bool = False  # of us, not only of every program of this machine


def settings_from(environment: Mapping[str, str], given: Mapping[str, str]) -> Settings:
    """The settings of a server on stdin and stdout."""
    values = _Values(environment, given)
    tools = values.toolsets("tools", ("resolve",))
    root = values.text("cache-root")
    if not root and "resolve" in tools:
        raise SettingsError(
            f"no cache root: give --cache-root DIR, or set {CACHE_ROOT} to the folder that holds the caches"
        )
    timeout_s = values.whole("tool-timeout-secs")
    fold = _fold_settings(values) if "fold" in tools else None
    return Settings(os.fsencode(root), timeout_s, tools, fold)


def daemon_settings_from(environment: Mapping[str, str], given: Mapping[str, str]) -> DaemonSettings:
    values = _Values(environment, given)
    root = values.text("cache-root") or _in_home(environment, "XDG_DATA_HOME", ".local/share", "caches")
    tools = values.toolsets("tools", TOOLSETS)
    fold = _fold_settings(values)
    return DaemonSettings(
        Settings(os.fsencode(root), values.whole("tool-timeout-secs"), tools, fold),
        fold,
        values.text("host"),
        values.whole("port"),
        values.text("token-file"),
        tuple(values.text("allow-host").replace(",", " ").split()),
        values.whole("rate-per-second"),
        values.whole("rate-burst"),
        values.whole("requests-max"),
        values.whole("body-max-bytes"),
        *_otlp_endpoint(values),
    )


def fold_settings_from(environment: Mapping[str, str], given: Mapping[str, str]) -> FoldSettings:
    return _fold_settings(_Values(environment, given))


def _fold_settings(values: _Values) -> FoldSettings:
    settings = FoldSettings(
        _store_path(values),
        values.whole("context-limit"),
        values.text("hard-limit") == "on",
        values.whole("branch-depth"),
        values.whole("branches-per-session"),
        values.whole("warn-medium-percent"),
        values.whole("warn-high-percent"),
        values.text("token-counter"),
        values.whole("session-idle-secs"),
        values.whole("archive-days"),
        values.whole("summary-days"),
        values.text("scrub-allowlist"),
    )
    if settings.warn_high_percent < settings.warn_medium_percent:
        raise SettingsError("warn-high-percent must not be below warn-medium-percent")
    return settings


def _otlp_endpoint(values: _Values) -> tuple[str, bool]:
    """Where traces go, and whether that was said to us: the common variable is meant for many, and may suit others."""
    ours = values.text("otlp-endpoint")
    if ours:
        return ("" if ours == "off" else ours), ours != "off"
    common = values.environment.get(COMMON_OTLP_ENDPOINT, "")
    speaks_http = values.environment.get(COMMON_OTLP_PROTOCOL, "http/protobuf") == "http/protobuf"
    return (common if speaks_http and _is_http_url(common) else ""), False


def _is_http_url(text: str) -> bool:
    scheme, separator, rest = text.partition("://")
    host = rest.partition("/")[0]
    return scheme in ("http", "https") and bool(separator and host) and "@" not in host and text.isprintable()


def _store_path(values: _Values) -> str:
    store = values.text("store")
    if not store:
        return _in_home(values.environment, "XDG_STATE_HOME", ".local/state", "state.db")
    scheme, colon, _rest = store.partition(":")
    if store.startswith(STORE_SCHEME):
        store = store.removeprefix(STORE_SCHEME)
    elif colon and "/" not in scheme and len(scheme) > 1:  # one letter is a drive
        raise SettingsError(f"--store must be a file, as {STORE_SCHEME}PATH or plain PATH; there is no {scheme} store")
    if not store:
        raise SettingsError(f"--store {STORE_SCHEME} lacks the path of the file")
    return store


def _in_home(environment: Mapping[str, str], variable: str, beside: str, name: str) -> str:
    base = environment.get(variable, "")
    if not os.path.isabs(base):  # a relative one is to be ignored, says the convention it comes from
        base = os.path.join(os.path.expanduser("~"), beside)
    return os.path.join(base, "contextfold", name)


class _Values:
    """A setting's text, from the first place that gives one, once it keeps its rule."""

    def __init__(self, environment: Mapping[str, str], given: Mapping[str, str]) -> None:
        self.environment = environment
        self._given = given
        path = given.get("config") or environment.get(CONFIG)
        self._file = _read_file(path) if path else {}

    def text(self, name: str) -> str:
        setting = SETTINGS[name]
        if name in self._given:
            called, text = f"--{name}", self._given[name]
        elif setting.variable in self.environment:
            called, text = setting.variable, self.environment[setting.variable]
        elif name in self._file:
            called, text = f"{name.replace('-', '_')} in the configuration file", self._file[name]
        else:
            return setting.default
        return str(setting.rule(called, text))

    def whole(self, name: str) -> int:
        return int(self.text(name))

    def toolsets(self, name: str, default: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.text(name).split(",")) if self.text(name) else default


def _read_file(path: str) -> dict[str, str]:
    import tomllib

    try:
        with open(path, "rb") as file:
            members = tomllib.load(file)
    except OSError as problem:
        raise SettingsError(f"cannot read the configuration file {path}: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise SettingsError(f"the configuration file {path} is not TOML: {problem}") from None
    values = {}
    for key, value in members.items():
        name = key.replace("_", "-")
        if name not in SETTINGS or not isinstance(value, str | int | float):
            raise SettingsError(
                f"{key} in the configuration file {path} is no setting; `context serve --help` has them"
            )
        values[name] = ("on" if value else "off") if isinstance(value, bool) else str(value)
    return values


def _any(_called: str, text: str) -> str:
    return text


def _named(called: str, text: str) -> str:
    """Empty is not the same as not given: a daemon meant to ask for tokens must not start without."""
    if not text:
        raise SettingsError(f"{called} is empty: name a file, or leave it out")
    return text


def _switch(called: str, text: str) -> str:
    if text not in ("on", "off"):
        raise SettingsError(f"{called} must be on or off, not {text!r}")
    return text


def _url_or_off(called: str, text: str) -> str:
    if text != "off" and not _is_http_url(text):
        raise SettingsError(f"{called} must be off, or a URL such as http://localhost:4318, without a user")
    return text


def _toolsets(called: str, text: str) -> str:
    names = text.split(",")
    if not set(names) <= set(TOOLSETS) or len(set(names)) != len(names):
        raise SettingsError(f"{called} must be resolve, fold or resolve,fold, not {text!r}")
    return ",".join(name for name in TOOLSETS if name in names)


def _counter(called: str, text: str) -> str:
    from contextfold.tokens import COUNTERS

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
        Setting("store", "CONTEXT_STORE", "", _named, "the file that holds the folding state"),
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
            "warn-medium-percent",
            "CONTEXT_WARN_MEDIUM_PERCENT",
            "50",
            between(0, 100),
            "above this share of the limit on the main thread the warning is medium",
        ),
        Setting(
            "warn-high-percent", "CONTEXT_WARN_HIGH_PERCENT", "70", between(0, 100), "and above this one it is high"
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
            "otlp-endpoint",
            "CONTEXT_OTLP_ENDPOINT",
            "",
            _url_or_off,
            f"where traces go (OTLP over HTTP), {COMMON_OTLP_ENDPOINT} if not given; off: nowhere",
        ),
    )
}
