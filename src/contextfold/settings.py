"""The settings: one table of all of them, how each is checked, and the records that the program gets.

A setting is taken from its option, else its variable, else the configuration file, else its default. Options, help and
the reference are made from the table. No other module reads the environment or the configuration file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from contextfold.common.network_address import URL_MAX, BadAddress, parse_authority
from contextfold.common.tokens import FOLD_COUNTERS
from contextfold.errors import SettingsError

CACHE_ROOT = "CONTEXT_CACHE_ROOT"
CONFIG = "CONTEXT_CONFIG"
COMMON_OTLP_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
COMMON_OTLP_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
# The first variable that is not empty counts, as in most programs.
HTTPS_PROXY = ("https_proxy", "HTTPS_PROXY")
NO_PROXY = ("no_proxy", "NO_PROXY")

TOOLSETS = ("resolve", "fold")
# This toolset replaces `fold`. It has only the two tools for folding afterwards, a third of the definitions.
FOLD_AFTERWARDS = "fold-afterwards"
ALL_TOOLSETS = (*TOOLSETS, FOLD_AFTERWARDS)
STORE_SCHEME = "sqlite:"
NATS_URL = "nats://localhost:4222"
NATS_SCHEMES = ("nats", "tls")
NATS_SERVERS_MAX = 16
NATS_PORT = 4222

TOOL_TIMEOUT_S = 30
# Eleven days; some systems accept no longer timeout.
TIMEOUT_MAX_S = 1_000_000
WHOLE_NUMBER_MAX = 1_000_000_000
PREFIX_MAX = 32
DOMAIN_MAX = 64
# At most this many bytes of a file with a password are read.
SECRET_MAX_BYTES = 4096
FILE_MAX_BYTES = 1 << 20
_SMALL = "abcdefghijklmnopqrstuvwxyz0123456789-"
_PLAIN = _SMALL + _SMALL.upper() + "_"


# ---- how a text is checked and converted; `label` is the name of the setting in the place where the user gave it

Parse = Callable[[str, str], Any]


def _parse_text(_label: str, text: str) -> str:
    return text


def _parse_filled(label: str, text: str) -> str:
    """A daemon that should use tokens must not start without them, so an empty name of a file is an error."""
    if not text:
        raise SettingsError(f"{label} is empty: give it a value, or leave it out")
    return text


def _parse_readable_file(label: str, text: str) -> str:
    try:
        with open(_parse_filled(label, text), "rb"):
            return text
    except OSError as problem:
        raise SettingsError(f"{label} names {text}, which cannot be read: {problem.strerror}") from None


def _word_of(letters: str, description: str, length_max: int) -> Parse:
    def parse(label: str, text: str) -> str:
        if not (text and len(text) <= length_max and set(letters).issuperset(text)):
            raise SettingsError(f"{label} must be 1 to {length_max} of {description}, not {text!r}")
        return text

    return parse


def _parse_nats_prefix(label: str, text: str) -> str:
    """The first part of NATS subjects. With an empty prefix, subjects begin with the owner."""
    return text and str(_word_of(_SMALL, "lowercase letters, digits and dashes", PREFIX_MAX)(label, text))


def _parse_names(_label: str, text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


def _one_of(*words: str) -> Parse:
    def parse(label: str, text: str) -> str:
        if text not in words:
            raise SettingsError(f"{label} must be {' or '.join(words)}, not {text!r}")
        return text

    return parse


def _parse_switch(label: str, text: str) -> bool:
    return bool(_one_of("on", "off")(label, text) == "on")


def _split_url(text: str) -> SplitResult | None:
    """The parts of a URL. None if it has none, or characters that are not printable, which `urlsplit` would drop."""
    try:
        return urlsplit(text) if text.isprintable() and "://" in text else None
    except ValueError:
        return None


def _is_http_url(text: str) -> bool:
    parts = _split_url(text)
    is_http = text.startswith(("http://", "https://"))
    return is_http and parts is not None and bool(parts.netloc) and "@" not in parts.netloc


def _parse_url_or_off(label: str, text: str) -> str:
    if text != "off" and not _is_http_url(text):
        raise SettingsError(f"{label} must be off, or a URL such as http://localhost:4318, without a user")
    return text


def _parse_base_url(label: str, text: str) -> str:
    """A base URL: paths are appended to it, so it must not have a query or a fragment."""
    parts = _split_url(text)
    if (
        parts is None
        or parts.scheme not in ("http", "https")
        or parse_authority(parts.netloc) is None
        or not parts.path.isascii()
        or not set(' ?#\\%"<>^`{|}').isdisjoint(text)
        or not {".", ".."}.isdisjoint(parts.path.split("/"))
    ):
        raise SettingsError(
            f"{label} must be a URL such as https://api.example.org/v1: http or https, a host, perhaps a port and a "
            "path; no user, no query, no fragment"
        )
    return parts.geturl().rstrip("/")


def offers_folding(tools: Collection[str]) -> bool:
    """Whether one of the chosen sets has tools for folding."""
    return "fold" in tools or FOLD_AFTERWARDS in tools


def parse_toolsets(label: str, text: str) -> tuple[str, ...]:
    """The names of toolsets in a list of them."""
    names = text.split(",")
    is_twice = len(set(names)) != len(names) or {"fold", FOLD_AFTERWARDS} <= set(names)
    if is_twice or not set(names) <= set(ALL_TOOLSETS):
        raise SettingsError(f"{label} must be resolve, fold, fold-afterwards or resolve and one of these, not {text!r}")
    return tuple(name for name in ALL_TOOLSETS if name in names)


def _parse_counter(label: str, text: str) -> str:
    if text not in FOLD_COUNTERS:
        raise SettingsError(f"{label} must be one of {', '.join(FOLD_COUNTERS)}, not {text!r}")
    return text


def between(least: int, most: int) -> Callable[[str, str], int]:
    """The rule for a whole number with these bounds."""

    def parse(label: str, text: str) -> int:
        digits = text.lstrip("0") or "0"
        if not (text.isascii() and text.isdigit()) or len(digits) > len(str(most)) or not least <= int(digits) <= most:
            raise SettingsError(f"{label} must be a whole number from {least} to {most}, not {text!r}")
        return int(digits)

    return parse


def _parse_seconds(label: str, text: str) -> int:
    digits = text.removeprefix("+").lstrip("0")
    if not (text.isascii() and digits.isdigit()):
        raise SettingsError(f"{label} must be a positive whole number of seconds, not {text!r}")
    return int(digits) if len(digits) < len(str(TIMEOUT_MAX_S)) else TIMEOUT_MAX_S


# ---- the table


class Setting(NamedTuple):
    """One setting. Its option is `--name`; in the configuration file the dashes of the name are underscores.

    The option of a setting without a metavar has no value and turns it on.
    """

    name: str
    metavar: str
    default: str
    parse: Parse
    help: str
    # Only for a variable whose name does not follow from the name of the setting.
    other_variable: str = ""

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return self.other_variable or f"CONTEXT_{self.field.upper()}"


def _number(name: str, default: int, least: int, most: int, help: str) -> Setting:
    return Setting(name, "N", str(default), between(least, most), help)


# Each entry has its help on a line of its own.
# fmt: off
_TABLE = (
    # A server, on any transport.
    Setting("cache-root", "DIR", "", _parse_text,
        "the folder that contains the caches"),
    Setting("tool-timeout-secs", "N", str(TOOL_TIMEOUT_S), _parse_seconds,
        "the timeout of a resolve call"),
    Setting("tools", "LIST", "", parse_toolsets,
        "the tools: resolve, fold or resolve,fold; fold-afterwards has context_fold and context_expand only"),
    # Where the daemon listens, and for whom.
    Setting("host", "ADDRESS", "127.0.0.1", _parse_text,
        "the address to listen on"),
    _number("port", 9090, 0, 65_535,
        "the port to listen on; 0 takes a free one"),
    Setting("token-file", "FILE", "", _parse_filled,
        "the file of owners and token hashes; required for any address but loopback"),
    Setting("allow-host", "NAMES", "", _parse_names,
        "further names of this machine that clients may use, separated by commas"),
    Setting("allow-other-users", "", "off", _parse_switch,
        "whether every user of this machine may call a daemon without tokens, such as one in a container"),
    # Folding, on any transport.
    Setting("store", "STORE", "", _parse_filled,
        "the store of the folding state: a file, or nats://HOST:PORT,…"),
    Setting("context-limit", "N", "0", between(0, WHOLE_NUMBER_MAX),
        "the size of a context in tokens; 0: the model's window, or 32768 where it is not known",
        other_variable="CONTEXT_LIMIT_TOKENS"),
    Setting("hard-limit", "on|off", "off", _parse_switch,
        "whether a branch beyond the context limit is refused"),
    _number("branch-depth", 8, 1, 64,
        "how deep branches may nest"),
    _number("branches-per-session", 1000, 1, 10_000,
        "the maximum number of branches in a session"),
    _number("branch-limit-tokens", 0, 0, WHOLE_NUMBER_MAX,
        "the size in tokens from which a branch is asked to return; 0: half of the context"),
    Setting("branch-reminder", "on|off", "on", _parse_switch,
        "whether tool results and hook answers advise when to return or fold, each advice once"),
    Setting("recall-at-start", "on|off", "off", _parse_switch,
        "whether the hook for a session's first prompt names up to three earlier folds of the project that fit it"),
    _number("warn-medium-percent", 50, 0, 100,
        "the warning is medium above this percentage of the limit on the main thread"),
    _number("warn-high-percent", 70, 0, 100,
        "the warning is high above this percentage of the limit on the main thread"),
    _number("price-cache-read-percent", 10, 0, 1_000,
        "the price of a token read from a prompt cache, in percent of an input token's; this one and the "
        "following ones are for models without known prices"),
    _number("price-cache-write-percent", 125, 0, 1_000,
        "the price of a token written to a prompt cache for 5 minutes, in percent of an input token's"),
    _number("price-cache-write-1h-percent", 200, 0, 1_000,
        "the price of a token written to a prompt cache for one hour, in percent of an input token's"),
    _number("price-output-percent", 500, 0, 10_000,
        "the price of a token of a response, in percent of an input token's"),
    Setting("models-file", "FILE", "", _parse_filled,
        "a TOML file of models' windows and prices, which adds to or overrides the built-in list"),
    Setting("token-counter", "NAME", "v0", _parse_counter,
        "the token counter: v0 or dense"),
    _number("session-idle-secs", 24 * 3600, 1, WHOLE_NUMBER_MAX,
        "seconds without activity after which a session ends"),
    _number("archive-days", 30, 1, 36_500,
        "days after which trajectories are deleted"),
    _number("summary-days", 365, 1, 36_500,
        "days after which summaries are deleted"),
    Setting("trust-clock", "", "off", _parse_switch,
        "this machine's clock is right, though the store has not seen the time pass that it shows"),
    Setting("scrub-allowlist", "FILE", "", _parse_filled,
        "a file of values that are not secrets"),
    # Limits on requests to the daemon.
    _number("rate-per-second", 2000, 1, WHOLE_NUMBER_MAX,
        "calls that an owner may make per second in the long run"),
    _number("rate-burst", 4000, 1, WHOLE_NUMBER_MAX,
        "calls that an owner may make at once"),
    _number("requests-max", 256, 1, 100_000,
        "requests that are answered at a time"),
    _number("body-max-bytes", 4 << 20, 1024, 1 << 30,
        "the largest body of a request"),
    # The proxy to models.
    Setting("anthropic-upstream", "URL", "https://api.anthropic.com", _parse_base_url,
        "where requests to /proxy/anthropic go, as in ANTHROPIC_BASE_URL"),
    Setting("openai-upstream", "URL", "https://api.openai.com/v1", _parse_base_url,
        "where requests to /proxy/openai/v1 go, as in OPENAI_BASE_URL"),
    Setting("gemini-upstream", "URL", "https://generativelanguage.googleapis.com", _parse_base_url,
        "where requests to /proxy/gemini go, as in GOOGLE_GEMINI_BASE_URL"),
    Setting("fold-results", "off|cold|auto|batches", "auto", _one_of("off", "cold", "auto", "batches"),
        "which old tool results the proxy leaves out: none; large ones once the provider's prompt cache has lapsed; "
        "also smaller ones, texts of edits and thinking, whenever that cache no longer holds them; or also many at "
        "once while it holds them, if that is likely to pay"),
    _number("prompt-cache-s", 0, 0, 604_800,
        "seconds for which a provider caches a prompt if the request does not say it; 0: as documented"),
    _number("proxy-body-max-bytes", 512 << 20, 1024, 1 << 40,
        "the largest body of a proxied request"),
    # Traces.
    Setting("otlp-endpoint", "URL", "", _parse_url_or_off,
        f"where traces are sent (OTLP over HTTP); off: nowhere (default: {COMMON_OTLP_ENDPOINT})"),
    # A store on NATS.
    Setting("nats-prefix", "NAME", "contextfold", _parse_nats_prefix,
        "the first part of streams and subjects on NATS, which separates installations; may be empty"),
    Setting("nats-domain", "NAME", "", _word_of(_PLAIN, "letters, digits, - and _", DOMAIN_MAX),
        "the JetStream domain"),
    _number("nats-replicas", 0, 0, 5,
        "replicas of each stream; 0: one for a new stream, and an existing one is not changed"),
    Setting("nats-creds", "FILE", "", _parse_readable_file,
        "a file of credentials for NATS"),
    Setting("nats-nkey", "FILE", "", _parse_readable_file,
        "a file with the seed of an nkey for NATS"),
    Setting("nats-user", "NAME", "", _parse_filled,
        "the user on NATS"),
    Setting("nats-password-file", "FILE", "", _parse_readable_file,
        "a file whose first line is the password of the user on NATS"),
    Setting("nats-tls-ca", "FILE", "", _parse_readable_file,
        "a file of the certificate authorities of NATS servers"),
    Setting("nats-tls-cert", "FILE", "", _parse_readable_file,
        "a file with our certificate for NATS servers"),
    Setting("nats-tls-key", "FILE", "", _parse_readable_file,
        "a file with the key of our certificate for NATS servers"),
)
# fmt: on

# Every setting by its name, in the order of the reference.
SETTINGS = {setting.name: setting for setting in _TABLE}
NATS = tuple(name for name in SETTINGS if name.startswith("nats-"))


# ---- the records; most of their fields are named after a setting


class NatsOptions(NamedTuple):
    """The servers of a cluster, without users and passwords in their URLs, and how to connect to them.

    The fields from `prefix` on are the settings that begin with `nats-`. With 0 replicas new streams get one, and
    existing streams stay as they are.
    """

    servers: tuple[str, ...]
    prefix: str = "contextfold"
    domain: str = ""
    replicas: int = 0
    creds: str = ""
    nkey: str = ""
    user: str = ""
    password: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    def __repr__(self) -> str:
        """A representation for logs and traces, without credentials."""
        return f"NatsOptions(servers={self.servers!r}, prefix={self.prefix!r})"

    @property
    def uses_tls(self) -> bool:
        return bool(self.tls_ca) or any(server.startswith("tls://") for server in self.servers)


class FoldSettings(NamedTuple):
    """The settings of folding, on any transport. With a store on NATS, `store` is empty; otherwise `nats` is None."""

    store: str
    nats: NatsOptions | None
    context_limit: int
    hard_limit: bool
    branch_depth: int
    branches_per_session: int
    branch_limit_tokens: int
    branch_reminder: bool
    recall_at_start: bool
    warn_medium_percent: int
    warn_high_percent: int
    price_cache_read_percent: int
    price_cache_write_percent: int
    price_cache_write_1h_percent: int
    price_output_percent: int
    models_file: str
    token_counter: str
    session_idle_secs: int
    archive_days: int
    summary_days: int
    trust_clock: bool
    scrub_allowlist: str


class Settings(NamedTuple):
    """The settings of a server on stdin and stdout. `fold` is None if the tools for folding are not offered."""

    cache_root: str
    tool_timeout_secs: int
    tools: tuple[str, ...]
    fold: FoldSettings | None


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
    # Which old tool results are left out: "off", "cold", "auto" or "batches".
    fold_results: str = "auto"
    # The lifetime of a cached prompt if the request does not say it; 0 for the provider's documented lifetime.
    prompt_cache_s: int = 0
    # Whether other daemons may use the same store.
    shares_store: bool = False


class DaemonSettings(NamedTuple):
    """The settings of the daemon.

    `otlp_is_asked_for` means that the endpoint is a setting of this program and not the common variable.
    `makes_cache_root` means that the root of the caches is the default one, which the daemon makes if it is missing.
    """

    server: Settings
    fold: FoldSettings
    proxy: ProxySettings
    host: str
    port: int
    token_file: str
    allow_host: tuple[str, ...]
    allow_other_users: bool
    rate_per_second: int
    rate_burst: int
    requests_max: int
    body_max_bytes: int
    otlp_endpoint: str
    otlp_is_asked_for: bool
    makes_cache_root: bool


# ---- reading them


class _Sources:
    """Where settings are given: options, variables and the configuration file, in this order."""

    def __init__(self, environment: Mapping[str, str], options: Mapping[str, str]) -> None:
        self.environment, self.options = environment, options
        path = options.get("config") or environment.get(CONFIG)
        self._file = _read_file(path) if path else {}

    def find(self, name: str) -> tuple[str, str] | None:
        """The text of a setting, and its name in the first source that has it; None if no source has it."""
        setting = SETTINGS[name]
        if name in self.options:
            return self.options[name], f"--{name}"
        if setting.variable in self.environment:
            return self.environment[setting.variable], setting.variable
        return (self._file[name], f"{setting.field} in the configuration file") if name in self._file else None

    def label(self, name: str) -> str:
        """The name of a setting in the source that has it, for messages."""
        found = self.find(name)
        return found[1] if found else f"--{name}"

    def read(self, name: str) -> Any:  # noqa: ANN401 - the setting's parser decides
        """The checked value of a setting. It is empty if no source has the setting and it has no default."""
        found, setting = self.find(name), SETTINGS[name]
        if found is None and not setting.default:
            return ""
        text, label = found or (setting.default, f"--{name}")
        return setting.parse(label, text)

    def read_fields(self, record: type[NamedTuple], **others: object) -> dict[str, Any]:
        """The fields of a record: `others`, and the settings that the rest of them are named after."""
        names = [field for field in record._fields if field not in others]
        return {field: self.read(field.replace("_", "-")) for field in names} | others


def _read_file(path: str) -> dict[str, str]:
    # Few commands are given a file, and the parser takes as long to import as everything else here.
    import tomllib

    try:
        members = tomllib.loads(read_text_file("the configuration file", path))
    except tomllib.TOMLDecodeError as problem:
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


def read_text_file(name: str, path: str) -> str:
    """The text of a file that a person wrote. A file without an end, such as /dev/zero, is not read to it."""
    try:
        with open(path, "rb") as file:
            raw = file.read(FILE_MAX_BYTES + 1)
        if len(raw) > FILE_MAX_BYTES:
            raise SettingsError(f"{name} {path} is larger than {FILE_MAX_BYTES >> 20} MiB")
        return raw.decode()
    except (OSError, UnicodeDecodeError) as problem:
        raise SettingsError(f"cannot read {name} {path}: {getattr(problem, 'strerror', problem)}") from None


def read_settings(environment: Mapping[str, str], options: Mapping[str, str]) -> Settings:
    """The settings of a server on stdin and stdout."""
    sources = _Sources(environment, options)
    tools = sources.read("tools") or ("resolve",)
    if not sources.read("cache-root") and "resolve" in tools:
        raise SettingsError(
            "no cache root: give --cache-root DIR, or set CONTEXT_CACHE_ROOT to the folder that holds the caches"
        )
    fold = _read_fold_settings(sources) if offers_folding(tools) else None
    return Settings(**sources.read_fields(Settings, tools=tools, fold=fold))


def read_daemon_settings(environment: Mapping[str, str], options: Mapping[str, str]) -> DaemonSettings:
    sources = _Sources(environment, options)
    fold = _read_fold_settings(sources)
    server = sources.read_fields(
        Settings,
        cache_root=sources.read("cache-root") or default_cache_root(environment),
        tools=sources.read("tools") or TOOLSETS,
        fold=fold,
    )
    endpoint, is_asked_for = _read_otlp_endpoint(sources)
    fields = sources.read_fields(
        DaemonSettings,
        server=Settings(**server),
        fold=fold,
        proxy=_read_proxy_settings(sources),
        allow_host=sources.read("allow-host") or (),
        otlp_endpoint=endpoint,
        otlp_is_asked_for=is_asked_for,
        makes_cache_root=not sources.read("cache-root"),
    )
    return DaemonSettings(**fields)


def read_fold_settings(environment: Mapping[str, str], options: Mapping[str, str]) -> FoldSettings:
    return _read_fold_settings(_Sources(environment, options))


def _read_fold_settings(sources: _Sources) -> FoldSettings:
    nats = _read_nats_options(sources)
    store = "" if nats else _read_store_path(sources)
    settings = FoldSettings(**sources.read_fields(FoldSettings, store=store, nats=nats))
    if settings.warn_high_percent < settings.warn_medium_percent:
        raise SettingsError("warn-high-percent must not be below warn-medium-percent")
    return settings


def _read_store_path(sources: _Sources) -> str:
    store: str = sources.read("store")
    if not store:
        return path_in_home(sources.environment, "XDG_STATE_HOME", ".local/state", "state.db")
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


def default_cache_root(environment: Mapping[str, str]) -> str:
    """The folder of caches that the daemon makes if no other is named."""
    return path_in_home(environment, "XDG_DATA_HOME", ".local/share", "caches")


def path_in_home(environment: Mapping[str, str], variable: str, default: str, name: str) -> str:
    """A path of ours below the folder that an XDG variable names."""
    folder = environment.get(variable, "")
    # The XDG specification says that relative paths must be ignored.
    if not os.path.isabs(folder):
        folder = os.path.join(os.path.expanduser("~"), default)
    return os.path.join(folder, "contextfold", name)


def proof_folder(environment: Mapping[str, str]) -> str:
    """The folder with the secrets by which daemons prove whose they are."""
    return path_in_home(environment, "XDG_STATE_HOME", ".local/state", "daemons")


def _read_nats_options(sources: _Sources) -> NatsOptions | None:
    """How to connect to NATS; None if the store is a file, in which case a setting for NATS is an error."""
    store = sources.read("store")
    if store.partition("://")[0].lower() not in NATS_SCHEMES:
        if unused := [name for name in NATS if name in sources.options or (not store and sources.find(name))]:
            raise SettingsError(
                f"{sources.label(unused[0])} is for a store on NATS: give --store {NATS_URL} too, or leave it out"
            )
        return None
    try:
        urls, user, password = _parse_nats_servers(store)
    except BadAddress as problem:
        raise SettingsError(f"{sources.label('store')} cannot be used: {problem}") from None
    special: dict[str, Any] = {
        "servers": urls,
        "user": user or sources.read("nats-user"),
        "password": password or _read_password(sources, "nats-password-file"),
    }
    others = [field for field in NatsOptions._fields if field not in special]
    options = NatsOptions(**special, **{field: sources.read(f"nats-{field.replace('_', '-')}") for field in others})
    if user and (sources.read("nats-user") or sources.read("nats-password-file")):
        raise SettingsError("the user is given twice: take user:password out of --store, or leave --nats-user out")
    _check_nats_options(options)
    return options


def _parse_nats_servers(text: str) -> tuple[tuple[str, ...], str, str]:
    """The servers of one cluster, separated by commas: their URLs, the user and the password.

    Errors do not quote the servers, because of the password.
    """
    servers = [_parse_nats_server(part.strip()) for part in text.split(",")]
    if len(servers) > NATS_SERVERS_MAX or len(text) > URL_MAX:
        raise BadAddress(f"it names too much: {NATS_SERVERS_MAX} servers and {URL_MAX} characters at most")
    if len({url.partition(":")[0] for url, _ in servers}) > 1:
        raise BadAddress("it mixes nats:// and tls://; with tls:// on every server nothing is sent in the clear")
    users = {credentials for _, credentials in servers if credentials}
    if len(users) > 1:
        raise BadAddress("its servers name different users; they are one cluster, and have the same")
    user, _, password = users.pop().partition(":") if users else ("", "", "")
    try:
        user, password = unquote(user, errors="strict"), unquote(password, errors="strict")
    except UnicodeDecodeError:
        raise BadAddress("what is written as %XX before the @ is not UTF-8") from None
    return tuple(dict.fromkeys(url for url, _ in servers)), user, password


def _parse_nats_server(text: str) -> tuple[str, str]:
    """A server's URL without user and password, and `user:password`."""
    scheme, _, rest = text.partition("://")
    credentials, at, address = rest.removesuffix("/").rpartition("@")
    authority = parse_authority(address)
    if scheme.lower() not in NATS_SCHEMES or authority is None:
        raise BadAddress(
            f"it must be like {NATS_URL}: nats or tls, a name and a port; more of them with commas between"
        )
    # `urlsplit` would end the host at a slash in the password, and the error would not say what is wrong.
    user, _, password = credentials.partition(":")
    if at and not (user and password and credentials.isprintable() and set("/?#@").isdisjoint(credentials)):
        raise BadAddress("before the @ it must have user:password, other characters than letters and digits as %XX")
    port = "" if authority.port else f":{NATS_PORT}"
    return f"{scheme.lower()}://{address}{port}", credentials


def _check_nats_options(options: NatsOptions) -> None:
    if bool(options.user) != bool(options.password):
        raise SettingsError("--nats-user and --nats-password-file need each other")
    if len([way for way in (options.user, options.creds, options.nkey) if way]) > 1:
        raise SettingsError("give one of --nats-user, --nats-creds and --nats-nkey: the server takes one")
    if bool(options.tls_cert) != bool(options.tls_key):
        raise SettingsError("--nats-tls-cert and --nats-tls-key need each other")
    if (options.tls_ca or options.tls_cert) and not options.servers[0].startswith("tls:"):
        raise SettingsError("write the servers of --store with tls://, or leave the files for TLS out")


def _read_password(sources: _Sources, name: str) -> str:
    """The first line of a file. As an option the password would be visible in the list of processes."""
    path = sources.read(name)
    if not path:
        return ""
    with open(path, "rb") as file:
        line = file.read(SECRET_MAX_BYTES).partition(b"\n")[0].removesuffix(b"\r")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if not text:
        raise SettingsError(f"{sources.label(name)} names {path}, whose first line is no password in UTF-8")
    return text


def _read_proxy_settings(sources: _Sources) -> ProxySettings:
    return ProxySettings(
        _read_upstream(sources, "anthropic-upstream"),
        _read_upstream(sources, "openai-upstream"),
        sources.read("proxy-body-max-bytes"),
        _read_upstream(sources, "gemini-upstream"),
        sources.read("fold-results"),
        sources.read("prompt-cache-s"),
        sources.read("store").partition("://")[0].lower() in NATS_SCHEMES,
    )


def _read_upstream(sources: _Sources, name: str) -> Upstream:
    """An upstream. The proxy variables count for https only, where the HTTP proxy does not see the API key."""
    url = sources.read(name)
    parts = urlsplit(url)
    proxy = _first_filled(sources.environment, HTTPS_PROXY)
    if parts.scheme != "https" or not proxy or _is_without_proxy(sources.environment, parts.hostname or ""):
        return Upstream(url)
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    return Upstream(url, proxy) if _is_usable_proxy(proxy) else Upstream(url, goes_direct=True)


def _is_usable_proxy(url: str) -> bool:
    """Whether the URL of an HTTP proxy is usable. An unusable one in a common variable is not an error."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_without_proxy(environment: Mapping[str, str], host: str) -> bool:
    """Whether NO_PROXY names the hostname or one of its parent domains."""
    names = [name.strip(" []").lower().lstrip(".") for name in _first_filled(environment, NO_PROXY).split(",")]
    return "*" in names or any(f".{host}".endswith(f".{name}") for name in names if name)


def _first_filled(environment: Mapping[str, str], variables: tuple[str, ...]) -> str:
    return next((text for name in variables if (text := environment.get(name, ""))), "")


def _read_otlp_endpoint(sources: _Sources) -> tuple[str, bool]:
    """The endpoint for traces, and whether it is a setting of this program.

    The common variable is for all programs of a machine; it is ignored if this program cannot use it.
    """
    own = sources.read("otlp-endpoint")
    if own:
        return ("" if own == "off" else own), own != "off"
    common = sources.environment.get(COMMON_OTLP_ENDPOINT, "")
    speaks_http = sources.environment.get(COMMON_OTLP_PROTOCOL, "http/protobuf") == "http/protobuf"
    return (common if speaks_http and _is_http_url(common) else ""), False
