"""Reads and checks the settings: from an option, else a variable, else the configuration file, else the default.

No other module reads the environment or the configuration file. Names, rules and defaults are in
`contextfold.settings`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from contextfold.common.network_address import (
    NATS_SCHEMES,
    NATS_URL,
    BadAddress,
    NatsOptions,
    authority_from,
    nats_servers_from,
)
from contextfold.common.token_counter import COUNTERS

CACHE_ROOT = "CONTEXT_CACHE_ROOT"
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
ALL_TOOLSETS = (*TOOLSETS, FOLD_AFTERWARDS)
PREFIX_MAX = 32
DOMAIN_MAX = 64
_SMALL = "abcdefghijklmnopqrstuvwxyz0123456789-"
_PLAIN = _SMALL + _SMALL.upper() + "_"


class SettingsError(Exception):
    """A setting is invalid; the message is one line that says how to correct it."""


Value = TypeVar("Value")


class Setting(Generic[Value]):
    """One setting: an attribute of a group.

    The option is `--name`; in the configuration file its dashes are underscores, as in the attribute. `rule` checks and
    converts a text; its first argument is the name of the setting for error messages. `variable` is empty if the name
    of the variable follows from the name of the setting.
    """

    def __init__(
        self, default: str, rule: Callable[[str, str], Value], metavar: str, help: str, variable: str = ""
    ) -> None:
        self.default, self.rule, self.metavar, self.help, self.variable = default, rule, metavar, help, variable

    def __set_name__(self, _group: type, field: str) -> None:
        self.field, self.name = field, field.replace("_", "-")
        self.variable = self.variable or f"CONTEXT_{field.upper()}"
        SETTINGS[self.name] = self

    if TYPE_CHECKING:

        def __get__(self, group: object, kind: type) -> Value: ...

    @property
    def empty(self) -> Any:  # noqa: ANN401 - as `rule`
        """The value of a setting that is not given and has no default."""
        return () if self.rule in (_names, toolsets) else ""


# Every setting by its name, in the order of the reference.
SETTINGS: dict[str, Setting[Any]] = {}


class SettingsGroup:
    """Checked values of settings, each under its name."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.__dict__.update(values)


def _any(_called: str, text: str) -> str:
    return text


def _filled(called: str, text: str) -> str:
    """A daemon that should use tokens must not start without them, so an empty name of a file is an error."""
    if not text:
        raise SettingsError(f"{called} is empty: give it a value, or leave it out")
    return text


def _readable(called: str, text: str) -> str:
    try:
        with open(_filled(called, text), "rb"):
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


def _choice(*words: str) -> Callable[[str, str], str]:
    def rule(called: str, text: str) -> str:
        if text not in words:
            raise SettingsError(f"{called} must be {' or '.join(words)}, not {text!r}")
        return text

    return rule


def _switch(called: str, text: str) -> bool:
    return _choice("on", "off")(called, text) == "on"


def is_http_url(text: str) -> bool:
    scheme, separator, rest = text.partition("://")
    host = rest.partition("/")[0]
    return scheme in ("http", "https") and bool(separator and host) and "@" not in host and text.isprintable()


def _url_or_off(called: str, text: str) -> str:
    if text != "off" and not is_http_url(text):
        raise SettingsError(f"{called} must be off, or a URL such as http://localhost:4318, without a user")
    return text


def _base_url(called: str, text: str) -> str:
    """A base URL: paths are appended to it, so it must not have a query or a fragment."""
    # Most commands need no address.

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


def offers_folding(tools: Collection[str]) -> bool:
    """Whether one of the chosen sets has tools for folding."""
    return "fold" in tools or FOLD_AFTERWARDS in tools


def toolsets(called: str, text: str) -> tuple[str, ...]:
    """The names of toolsets in a list of them. `called` is how the user gave it."""
    names = text.split(",")
    is_twice = len(set(names)) != len(names) or {"fold", FOLD_AFTERWARDS} <= set(names)
    if is_twice or not set(names) <= set(ALL_TOOLSETS):
        raise SettingsError(
            f"{called} must be resolve, fold, fold-afterwards or resolve and one of these, not {text!r}"
        )
    return tuple(name for name in ALL_TOOLSETS if name in names)


def _counter(called: str, text: str) -> str:
    if text == COUNTER_DEFAULT:
        return text

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


def _number(default: int, least: int, most: int, help: str, variable: str = "") -> Setting[int]:
    return Setting(str(default), between(least, most), "N", help, variable)


class Settings(SettingsGroup):
    """The settings of a server on stdin and stdout."""

    # None if the tools for folding are not offered.
    fold: FoldSettings | None = None

    cache_root = Setting("", _any, "DIR", "the folder that contains the caches")
    tool_timeout_secs = Setting(str(TOOL_TIMEOUT_S), _seconds, "N", "the timeout of a resolve call")
    tools = Setting(
        "",
        toolsets,
        "LIST",
        "the tools: resolve, fold or resolve,fold; fold-afterwards has context_fold and context_expand only",
    )


class ListenSettings(SettingsGroup):
    """Where the daemon listens, and for whom."""

    host = Setting("127.0.0.1", _any, "ADDRESS", "the address to listen on")
    port = _number(9090, 0, 65_535, "the port to listen on; 0 takes a free one")
    token_file = Setting(
        "", _filled, "FILE", "the file of owners and token hashes; required for any address but loopback"
    )
    allow_host = Setting("", _names, "NAMES", "further names of this machine that clients may use, separated by commas")


class FoldSettings(SettingsGroup):
    """The settings of folding, on any transport. With a store on NATS, `store` is empty."""

    nats: NatsOptions | None

    store = Setting("", _filled, "STORE", "the store of the folding state: a file, or nats://HOST:PORT,…")
    context_limit = _number(
        0,
        0,
        WHOLE_NUMBER_MAX,
        "the size of a context in tokens; 0: the model's window, or 32768 where it is not known",
        "CONTEXT_LIMIT_TOKENS",
    )
    hard_limit = Setting("off", _switch, "on|off", "whether a branch beyond the context limit is refused")
    branch_depth = _number(8, 1, 64, "how deep branches may nest")
    branches_per_session = _number(1000, 1, 10_000, "the maximum number of branches in a session")
    branch_limit_tokens = _number(
        0, 0, WHOLE_NUMBER_MAX, "the size in tokens from which a branch is asked to return; 0: half of the context"
    )
    branch_reminder = Setting(
        "on", _switch, "on|off", "whether tool results and hook answers advise when to return or fold, each advice once"
    )
    recall_at_start = Setting(
        "off",
        _switch,
        "on|off",
        "whether the hook for a session's first prompt names up to three earlier folds of the project that fit it",
    )
    warn_medium_percent = _number(
        50, 0, 100, "the warning is medium above this percentage of the limit on the main thread"
    )
    warn_high_percent = _number(70, 0, 100, "the warning is high above this percentage of the limit on the main thread")
    price_cache_read_percent = _number(
        10,
        0,
        1_000,
        "the price of a token read from a prompt cache, in percent of an input token's; this one and the "
        "following ones are for models without known prices",
    )
    price_cache_write_percent = _number(
        125, 0, 1_000, "the price of a token written to a prompt cache for 5 minutes, in percent of an input token's"
    )
    price_cache_write_1h_percent = _number(
        200, 0, 1_000, "the price of a token written to a prompt cache for one hour, in percent of an input token's"
    )
    price_output_percent = _number(500, 0, 10_000, "the price of a token of a response, in percent of an input token's")
    models_file = Setting(
        "",
        _filled,
        "FILE",
        "a TOML file of models' windows and prices, which adds to or overrides the built-in list",
    )
    token_counter = Setting(COUNTER_DEFAULT, _counter, "NAME", "the token counter: v0 or dense")
    session_idle_secs = _number(24 * 3600, 1, WHOLE_NUMBER_MAX, "seconds without activity after which a session ends")
    archive_days = _number(30, 1, 36_500, "days after which trajectories are deleted")
    summary_days = _number(365, 1, 36_500, "days after which summaries are deleted")
    scrub_allowlist = Setting("", _filled, "FILE", "a file of values that are not secrets")


class LimitSettings(SettingsGroup):
    """The limits on requests to the daemon."""

    rate_per_second = _number(2000, 1, WHOLE_NUMBER_MAX, "calls that an owner may make per second in the long run")
    rate_burst = _number(4000, 1, WHOLE_NUMBER_MAX, "calls that an owner may make at once")
    requests_max = _number(256, 1, 100_000, "requests that are answered at a time")
    body_max_bytes = _number(4 << 20, 1024, 1 << 30, "the largest body of a request")


class ModelProxySettings(SettingsGroup):
    """The settings of the proxy to models."""

    anthropic_upstream = Setting(
        "https://api.anthropic.com", _base_url, "URL", "where requests to /proxy/anthropic go, as in ANTHROPIC_BASE_URL"
    )
    openai_upstream = Setting(
        "https://api.openai.com/v1", _base_url, "URL", "where requests to /proxy/openai/v1 go, as in OPENAI_BASE_URL"
    )
    gemini_upstream = Setting(
        "https://generativelanguage.googleapis.com",
        _base_url,
        "URL",
        "where requests to /proxy/gemini go, as in GOOGLE_GEMINI_BASE_URL",
    )
    fold_results = Setting(
        "cold",
        _choice("off", "cold"),
        "off|cold",
        "whether the proxy leaves old tool results out once the provider's prompt cache has lapsed",
    )
    prompt_cache_s = _number(
        0, 0, 604_800, "seconds for which a provider caches a prompt if the request does not say it; 0: as documented"
    )
    proxy_body_max_bytes = _number(512 << 20, 1024, 1 << 40, "the largest body of a proxied request")


class DaemonSettings(ListenSettings, LimitSettings):
    """The settings of the daemon.

    `otlp_is_asked_for` means that the endpoint is a setting of this program and not the common variable.
    """

    server: Settings
    fold: FoldSettings
    proxy: ProxySettings
    otlp_is_asked_for: bool

    otlp_endpoint = Setting(
        "",
        _url_or_off,
        "URL",
        f"where traces are sent (OTLP over HTTP); off: nowhere (default: {COMMON_OTLP_ENDPOINT})",
    )


class NatsSettings(SettingsGroup):
    """The settings of a store on NATS."""

    nats_prefix = Setting(
        "contextfold",
        _nats_prefix,
        "NAME",
        "the first part of streams and subjects on NATS, which separates installations; may be empty",
    )
    nats_domain = Setting("", _words(_PLAIN, "letters, digits, - and _", DOMAIN_MAX), "NAME", "the JetStream domain")
    nats_replicas = _number(
        0, 0, 5, "replicas of each stream; 0: one for a new stream, and an existing one is not changed"
    )
    nats_creds = Setting("", _readable, "FILE", "a file of credentials for NATS")
    nats_nkey = Setting("", _readable, "FILE", "a file with the seed of an nkey for NATS")
    nats_user = Setting("", _filled, "NAME", "the user on NATS")
    nats_password_file = Setting("", _readable, "FILE", "a file whose first line is the password of the user on NATS")
    nats_tls_ca = Setting("", _readable, "FILE", "a file of the certificate authorities of NATS servers")
    nats_tls_cert = Setting("", _readable, "FILE", "a file with our certificate for NATS servers")
    nats_tls_key = Setting("", _readable, "FILE", "a file with the key of our certificate for NATS servers")


NATS = tuple(name for name in SETTINGS if name.startswith("nats-"))


STORE_SCHEME = "sqlite:"
# The first variable that is not empty counts, as in most programs.
HTTPS_PROXY = ("https_proxy", "HTTPS_PROXY")
NO_PROXY = ("no_proxy", "NO_PROXY")
# At most this many bytes of a file with a password are read.
SECRET_MAX_BYTES = 4096


class Upstream(NamedTuple):
    """The URL for proxied requests. `through` is the HTTP proxy that they go through, if any.

    `goes_direct` means that a variable names an HTTP proxy that cannot be used.
    """

    url: str
    through: str = ""
    goes_direct: bool = False


class ProxySettings(NamedTuple):
    """The settings of the proxy to models."""

    anthropic: Upstream
    openai: Upstream
    body_max_bytes: int
    gemini: Upstream = Upstream("https://generativelanguage.googleapis.com")
    # Whether old tool results are left out after the provider's prompt cache has expired.
    folds_results: bool = True
    # The lifetime of a cached prompt if the request does not say it; 0 for the provider's documented lifetime.
    prompt_cache_s: int = 0


def settings_from(environment: Mapping[str, str], options: Mapping[str, str]) -> Settings:
    """The settings of a server on stdin and stdout."""
    values = _SettingValues(environment, options)
    tools = values.get("tools") or ("resolve",)
    if not values.get("cache-root") and "resolve" in tools:
        raise SettingsError(
            "no cache root: give --cache-root DIR, or set CONTEXT_CACHE_ROOT to the folder that holds the caches"
        )
    fold = _fold_settings(values) if offers_folding(tools) else None
    return Settings(values.of(Settings, tools=tools, fold=fold))


def daemon_settings_from(environment: Mapping[str, str], options: Mapping[str, str]) -> DaemonSettings:
    values = _SettingValues(environment, options)
    root = values.get("cache-root") or _in_home(environment, "XDG_DATA_HOME", ".local/share", "caches")
    fold = _fold_settings(values)
    server = Settings(values.of(Settings, cache_root=root, tools=values.get("tools") or TOOLSETS, fold=fold))
    endpoint, is_asked_for = _otlp_endpoint(values)
    proxy = _proxy_settings(values)
    special = {"server": server, "fold": fold, "proxy": proxy, "otlp_is_asked_for": is_asked_for}
    return DaemonSettings(values.of(DaemonSettings, otlp_endpoint=endpoint, **special))


def fold_settings_from(environment: Mapping[str, str], options: Mapping[str, str]) -> FoldSettings:
    return _fold_settings(_SettingValues(environment, options))


def _fold_settings(values: _SettingValues) -> FoldSettings:
    nats = _nats_settings(values)
    store = "" if nats else _store_path(values)
    settings = FoldSettings(values.of(FoldSettings, store=store, nats=nats))
    if settings.warn_high_percent < settings.warn_medium_percent:
        raise SettingsError("warn-high-percent must not be below warn-medium-percent")
    return settings


def _proxy_settings(values: _SettingValues) -> ProxySettings:
    return ProxySettings(
        _upstream(values, "anthropic-upstream"),
        _upstream(values, "openai-upstream"),
        values.get("proxy-body-max-bytes"),
        _upstream(values, "gemini-upstream"),
        values.get("fold-results") == "cold",
        values.get("prompt-cache-s"),
    )


def _upstream(values: _SettingValues, name: str) -> Upstream:
    """An upstream. The proxy variables count for https only, where the HTTP proxy does not see the API key."""
    url = values.get(name)
    scheme, _, rest = url.partition("://")
    machine = authority_from(rest.partition("/")[0])
    assert machine is not None
    through = _first(values.environment, HTTPS_PROXY)
    if scheme != "https" or not through or _goes_direct(values.environment, machine.name):
        return Upstream(url)
    through = through if "://" in through else f"http://{through}"
    return Upstream(url, through) if _is_proxy(through) else Upstream(url, goes_direct=True)


def _is_proxy(url: str) -> bool:
    """Whether the URL of an HTTP proxy is usable. An unusable one in a common variable is not an error."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _goes_direct(environment: Mapping[str, str], host: str) -> bool:
    """Whether NO_PROXY names the hostname or one of its parent domains."""
    names = [name.strip().lower().lstrip(".") for name in _first(environment, NO_PROXY).split(",") if name.strip()]
    return "*" in names or any(f".{host.lower()}".endswith(f".{name}") for name in names)


def _first(environment: Mapping[str, str], variables: tuple[str, ...]) -> str:
    return next((text for name in variables if (text := environment.get(name, ""))), "")


def _otlp_endpoint(values: _SettingValues) -> tuple[str, bool]:
    """The endpoint for traces, and whether it is a setting of this program.

    The common variable is for all programs of a machine; it is ignored if this program cannot use it.
    """
    own = values.get("otlp-endpoint")
    if own:
        return ("" if own == "off" else own), own != "off"
    common = values.environment.get(COMMON_OTLP_ENDPOINT, "")
    speaks_http = values.environment.get(COMMON_OTLP_PROTOCOL, "http/protobuf") == "http/protobuf"
    return (common if speaks_http and is_http_url(common) else ""), False


def _store_path(values: _SettingValues) -> str:
    store: str = values.get("store")
    if not store:
        return _in_home(values.environment, "XDG_STATE_HOME", ".local/state", "state.db")
    scheme, colon, _rest = store.partition(":")
    if store.startswith(STORE_SCHEME):
        store = store.removeprefix(STORE_SCHEME)
    elif colon and "/" not in scheme and len(scheme) > 1:
        # A single letter would be a Windows drive.

        raise SettingsError(
            f"--store must be a file, as {STORE_SCHEME}PATH or plain PATH, or servers of NATS, as {NATS_URL}; "
            f"there is no {scheme} store"
        )
    if not store:
        raise SettingsError(f"--store {STORE_SCHEME} lacks the path of the file")
    return store


def _is_on_nats(store: str) -> bool:
    # Most paths are absolute, and then there is no scheme to look at.
    if not store or store.startswith("/"):
        return False

    return store.partition("://")[0].lower() in NATS_SCHEMES


def _nats_settings(values: _SettingValues) -> NatsOptions | None:
    """The settings of NATS; None if the store is a file, in which case a setting for NATS is an error."""
    store = values.get("store")
    if not _is_on_nats(store):
        if idle := [name for name in NATS if name in values.options or (not store and values.given(name))]:
            raise SettingsError(
                f"{values.called(idle[0])} is for a store on NATS: give --store {NATS_URL} too, or leave it out"
            )
        return None

    try:
        servers = nats_servers_from(store)
    except BadAddress as problem:
        raise SettingsError(f"{values.called('store')} cannot be used: {problem}") from None
    special: dict[str, Any] = {
        "servers": servers.urls,
        "user": servers.user or values.get("nats-user"),
        "password": servers.password or _first_line(values, "nats-password-file"),
    }
    others = [name for name in NatsOptions._fields if name not in special]
    settings = NatsOptions(**special, **{name: values.get(f"nats-{name.replace('_', '-')}") for name in others})
    _check_nats(values, settings, bool(servers.user))
    return settings


def _check_nats(values: _SettingValues, settings: NatsOptions, is_user_in_url: bool) -> None:
    if is_user_in_url and (values.get("nats-user") or values.get("nats-password-file")):
        raise SettingsError("the user is given twice: take user:password out of --store, or leave --nats-user out")
    if bool(settings.user) != bool(settings.password):
        raise SettingsError("--nats-user and --nats-password-file need each other")
    if len([way for way in (settings.user, settings.creds, settings.nkey) if way]) > 1:
        raise SettingsError("give one of --nats-user, --nats-creds and --nats-nkey: the server takes one")
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise SettingsError("--nats-tls-cert and --nats-tls-key need each other")
    if (settings.tls_ca or settings.tls_cert) and not settings.servers[0].startswith("tls:"):
        raise SettingsError("write the servers of --store with tls://, or leave the files for TLS out")


def _first_line(values: _SettingValues, name: str) -> str:
    """Read a secret from a file. As an option it would be visible in the list of processes."""
    path = values.get(name)
    if not path:
        return ""
    with open(path, "rb") as file:
        line = file.read(SECRET_MAX_BYTES).partition(b"\n")[0].removesuffix(b"\r")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise SettingsError(f"{values.called(name)} names {path}, whose first line is no password in UTF-8")
    return text


def _in_home(environment: Mapping[str, str], variable: str, beside: str, name: str) -> str:
    base = environment.get(variable, "")
    # The XDG specification says that relative paths must be ignored.
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), beside)
    return os.path.join(base, "contextfold", name)


class _SettingValues:
    """The values of settings. Each is taken from the first source that has it, and checked by its rule."""

    def __init__(self, environment: Mapping[str, str], options: Mapping[str, str]) -> None:
        self.environment, self.options = environment, options
        path = options.get("config") or environment.get(CONFIG)
        self._file = _read_file(path) if path else {}

    def given(self, name: str) -> tuple[str, str] | None:
        """The text of a setting, and its name in the first source that has it; None if no source has it."""
        setting = SETTINGS[name]
        if name in self.options:
            return self.options[name], f"--{name}"
        if setting.variable in self.environment:
            return self.environment[setting.variable], setting.variable
        return (self._file[name], f"{setting.field} in the configuration file") if name in self._file else None

    def get(self, name: str) -> Any:  # noqa: ANN401 - the rule decides
        setting, given = SETTINGS[name], self.given(name)
        if given is None and not setting.default:
            return setting.empty
        text, called = given or (setting.default, f"--{name}")
        return setting.rule(called, text)

    def of(self, group: type[SettingsGroup], **special: object) -> dict[str, object]:
        """The values of a group: those in `special`, and the checked settings for all others."""
        names = [name for name, setting in SETTINGS.items() if hasattr(group, setting.field)]
        return {SETTINGS[name].field: self.get(name) for name in names if SETTINGS[name].field not in special} | special

    def called(self, name: str) -> str:
        """The name of a setting in the source that has it, for messages."""
        given = self.given(name)
        return given[1] if given else f"--{name}"


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
                f"{key} in the configuration file {path} is no setting; `context help settings` lists them"
            )
        values[name] = ("on" if value else "off") if isinstance(value, bool) else str(value)
    return values
