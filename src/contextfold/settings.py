"""What a server may be told from outside, checked and named in one place: flag, then variable, then file, then default.

The only reader of the environment and of the configuration file. The rules are `contextfold.settings_table`'s; knows
what goes together, not who uses it.
"""

from __future__ import annotations

import os

from contextfold.common.network_address import NATS_SCHEMES, NATS_URL, BadAddress, nats_servers_from
from contextfold.common.record import Record
from contextfold.settings_table import (
    CACHE_ROOT,
    COMMON_OTLP_ENDPOINT,
    COMMON_OTLP_PROTOCOL,
    CONFIG,
    NATS,
    SETTINGS,
    TOOL_TIMEOUT,
    TOOL_TIMEOUT_S,
    TOOLSETS,
    SettingsError,
    between,
    is_http_url,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

STORE_SCHEME = "sqlite:"
HTTPS_PROXY = ("https_proxy", "HTTPS_PROXY")  # the first that says something, as most programs have it
NO_PROXY = ("no_proxy", "NO_PROXY")
SECRET_MAX_BYTES = 4096  # of a file that holds a password


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
    nats: NatsSettings | None = None  # then the state is there, and `store` is empty
    branch_limit_tokens: int = 0  # half of the context
    branch_reminder: bool = True
    price_cache_read_percent: int = 10  # of an input token's
    price_cache_write_percent: int = 125


class NatsSettings(Record):
    """Of a store on NATS: where it is, and as whom we go there."""

    servers: tuple[str, ...]
    prefix: str
    domain: str
    replicas: int  # 0: one where a stream is made, and as they are where there are some
    creds: str  # a file, as `nkey` and the last three are
    nkey: str
    user: str
    password: str
    tls_ca: str
    tls_cert: str
    tls_key: str

    def __repr__(self) -> str:
        """For logs and traces, so without what lets somebody in."""
        return f"NatsSettings(servers={self.servers!r}, prefix={self.prefix!r})"


class Upstream(Record):
    """Where proxied requests go, and the HTTP proxy of this machine's on the way there, if any."""

    url: str
    through: str = ""
    goes_direct: bool = False  # though a variable names a proxy: one that cannot be used


class ProxySettings(Record):
    """Of requests to models that pass through the daemon."""

    anthropic: Upstream
    openai: Upstream
    body_max_bytes: int
    gemini: Upstream = Upstream("https://generativelanguage.googleapis.com")
    # Whether old tool results are left out once the provider's prompt cache has lapsed.
    folds_results: bool = True
    # How long a prompt is taken to be cached where the request does not say it; 0: as the provider documents it.
    prompt_cache_s: int = 0


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
    proxy: ProxySettings
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
        _proxy_settings(values),
        *_otlp_endpoint(values),
    )


def fold_settings_from(environment: Mapping[str, str], given: Mapping[str, str]) -> FoldSettings:
    return _fold_settings(_Values(environment, given))


def _fold_settings(values: _Values) -> FoldSettings:
    nats = _nats_settings(values)
    settings = FoldSettings(
        "" if nats else _store_path(values),
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
        nats,
        values.whole("branch-limit-tokens"),
        values.text("branch-reminder") == "on",
        values.whole("price-cache-read-percent"),
        values.whole("price-cache-write-percent"),
    )
    if settings.warn_high_percent < settings.warn_medium_percent:
        raise SettingsError("warn-high-percent must not be below warn-medium-percent")
    return settings


def _proxy_settings(values: _Values) -> ProxySettings:
    return ProxySettings(
        _upstream(values, "anthropic-upstream"),
        _upstream(values, "openai-upstream"),
        values.whole("proxy-body-max-bytes"),
        _upstream(values, "gemini-upstream"),
        values.text("fold-results") == "cold",
        values.whole("prompt-cache-s"),
    )


def _upstream(values: _Values, name: str) -> Upstream:
    """The common variables count for https alone: there the proxy sees no key, only which host is asked for."""
    url = values.text(name)
    scheme, _, rest = url.partition("://")
    authority = rest.partition("/")[0]
    host = authority if authority.endswith("]") or ":" not in authority else authority.rpartition(":")[0]
    through = _first(values.environment, HTTPS_PROXY)
    if scheme != "https" or not through or _goes_direct(values.environment, host):
        return Upstream(url)
    through = through if "://" in through else f"http://{through}"
    return Upstream(url, through) if _is_proxy(through) else Upstream(url, goes_direct=True)


def _is_proxy(url: str) -> bool:
    """What is meant for many programs and makes no sense to this one is no reason not to start."""
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _goes_direct(environment: Mapping[str, str], host: str) -> bool:
    """Whether NO_PROXY names the host, or a domain that it is in."""
    names = [name.strip().lower().lstrip(".") for name in _first(environment, NO_PROXY).split(",") if name.strip()]
    return "*" in names or any(f".{host.lower()}".endswith(f".{name}") for name in names)


def _first(environment: Mapping[str, str], variables: tuple[str, ...]) -> str:
    return next((text for name in variables if (text := environment.get(name, ""))), "")


def _otlp_endpoint(values: _Values) -> tuple[str, bool]:
    """Where traces go, and whether that was said to us: the common variable is meant for many, and may suit others."""
    ours = values.text("otlp-endpoint")
    if ours:
        return ("" if ours == "off" else ours), ours != "off"
    common = values.environment.get(COMMON_OTLP_ENDPOINT, "")
    speaks_http = values.environment.get(COMMON_OTLP_PROTOCOL, "http/protobuf") == "http/protobuf"
    return (common if speaks_http and is_http_url(common) else ""), False


def _store_path(values: _Values) -> str:
    store = values.text("store")
    if not store:
        return _in_home(values.environment, "XDG_STATE_HOME", ".local/state", "state.db")
    scheme, colon, _rest = store.partition(":")
    if store.startswith(STORE_SCHEME):
        store = store.removeprefix(STORE_SCHEME)
    elif colon and "/" not in scheme and len(scheme) > 1:  # one letter is a drive
        raise SettingsError(
            f"--store must be a file, as {STORE_SCHEME}PATH or plain PATH, or servers of NATS, as {NATS_URL}; "
            f"there is no {scheme} store"
        )
    if not store:
        raise SettingsError(f"--store {STORE_SCHEME} lacks the path of the file")
    return store


def _nats_settings(values: _Values) -> NatsSettings | None:
    """None where the store is a file. Settings of NATS are then in nobody's way, unless NATS was plainly meant."""
    store = values.text("store")
    if store.partition("://")[0].lower() not in NATS_SCHEMES:
        if idle := [name for name in NATS if values.is_given(name, as_flag=bool(store))]:
            raise SettingsError(
                f"{values.called(idle[0])} is for a store on NATS: give --store {NATS_URL} too, or leave it out"
            )
        return None
    try:
        servers = nats_servers_from(store)
    except BadAddress as problem:
        raise SettingsError(f"{values.called('store')} cannot be used: {problem}") from None
    settings = NatsSettings(
        servers.urls,
        values.text("nats-prefix"),
        values.text("nats-domain"),
        values.whole("nats-replicas"),
        values.text("nats-creds"),
        values.text("nats-nkey"),
        servers.user or values.text("nats-user"),
        servers.password or _first_line(values, "nats-password-file"),
        values.text("nats-tls-ca"),
        values.text("nats-tls-cert"),
        values.text("nats-tls-key"),
    )
    _check_nats(values, settings, bool(servers.user))
    return settings


def _check_nats(values: _Values, settings: NatsSettings, is_user_in_url: bool) -> None:
    if is_user_in_url and (values.text("nats-user") or values.text("nats-password-file")):
        raise SettingsError("the user is given twice: take user:password out of --store, or leave --nats-user out")
    if bool(settings.user) != bool(settings.password):
        raise SettingsError("--nats-user and --nats-password-file need each other")
    if len([way for way in (settings.user, settings.creds, settings.nkey) if way]) > 1:
        raise SettingsError("give one of --nats-user, --nats-creds and --nats-nkey: the server takes one")
    if bool(settings.tls_cert) != bool(settings.tls_key):
        raise SettingsError("--nats-tls-cert and --nats-tls-key need each other")
    if (settings.tls_ca or settings.tls_cert) and not settings.servers[0].startswith("tls:"):
        raise SettingsError("write the servers of --store with tls://, or leave the files for TLS out")


def _first_line(values: _Values, name: str) -> str:
    """A secret, from a file, so that no list of processes shows it."""
    path = values.text(name)
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
            text = self._given[name]
        elif setting.variable in self.environment:
            text = self.environment[setting.variable]
        elif name in self._file:
            text = self._file[name]
        else:
            return setting.default
        return str(setting.rule(self.called(name), text))

    def called(self, name: str) -> str:
        """What whoever gave it calls it."""
        if name in self._given or not self.is_given(name, as_flag=False):
            return f"--{name}"
        variable = SETTINGS[name].variable
        return variable if variable in self.environment else f"{name.replace('-', '_')} in the configuration file"

    def is_given(self, name: str, *, as_flag: bool) -> bool:
        """Whether it is given at all, or on the command line."""
        if name in self._given or as_flag:
            return name in self._given
        return SETTINGS[name].variable in self.environment or name in self._file

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


__all__ = [
    "CACHE_ROOT",
    "CONFIG",
    "SETTINGS",
    "TOOL_TIMEOUT",
    "TOOL_TIMEOUT_S",
    "DaemonSettings",
    "FoldSettings",
    "NatsSettings",
    "ProxySettings",
    "Settings",
    "SettingsError",
    "Upstream",
    "between",
    "daemon_settings_from",
    "fold_settings_from",
    "settings_from",
]
