"""Reads and checks the settings: from an option, else a variable, else the configuration file, else the default.

No other module reads the environment or the configuration file. Names, rules and defaults are in
`contextfold.settings_table`.
"""

from __future__ import annotations

import os

from contextfold.common.record import Record
from contextfold.settings_table import (
    COMMON_OTLP_ENDPOINT,
    COMMON_OTLP_PROTOCOL,
    CONFIG,
    NATS,
    SETTINGS,
    TOOLSETS,
    DaemonSettings,
    FoldSettings,
    Settings,
    SettingsError,
    SettingsGroup,
    is_http_url,
    offers_folding,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from contextfold.common.network_address import NatsOptions

STORE_SCHEME = "sqlite:"
# The first variable that is not empty counts, as in most programs.
HTTPS_PROXY = ("https_proxy", "HTTPS_PROXY")
NO_PROXY = ("no_proxy", "NO_PROXY")
# At most this many bytes of a file with a password are read.
SECRET_MAX_BYTES = 4096


class Upstream(Record):
    """The URL for proxied requests. `through` is the HTTP proxy that they go through, if any.

    `goes_direct` means that a variable names an HTTP proxy that cannot be used.
    """

    url: str
    through: str = ""
    goes_direct: bool = False


class ProxySettings(Record):
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
    from contextfold.common.network_address import authority_from

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
        from contextfold.common.network_address import NATS_URL

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
    from contextfold.common.network_address import NATS_SCHEMES

    return store.partition("://")[0].lower() in NATS_SCHEMES


def _nats_settings(values: _SettingValues) -> NatsOptions | None:
    """The settings of NATS; None if the store is a file, in which case a setting for NATS is an error."""
    store = values.get("store")
    if not _is_on_nats(store):
        if idle := [name for name in NATS if name in values.options or (not store and values.given(name))]:
            from contextfold.common.network_address import NATS_URL

            raise SettingsError(
                f"{values.called(idle[0])} is for a store on NATS: give --store {NATS_URL} too, or leave it out"
            )
        return None
    from contextfold.common.network_address import BadAddress, NatsOptions, nats_servers_from

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
