"""The composition root: makes stores and services from settings. The only module that names the concrete backends.

The daemon is composed in `daemon`. What commands that read do not need is imported by the functions that make it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from contextfold.errors import SettingsError
from contextfold.fold.model_catalog import MODELS, ModelCatalog, ModelsInvalid, TokenPrices, parse_models
from contextfold.fold.policy import AdviceSettings, FoldPolicy, Thresholds
from contextfold.fold.service.stored_sessions import StoredSessions
from contextfold.fold.session import SessionLimits
from contextfold.fold.store import Store
from contextfold.settings import FoldSettings, read_text_file
from contextfold.stores.sqlite.state_file import SqliteReader, delete_file, verify_file

if TYPE_CHECKING:
    # Commands that read a file import neither asyncio nor RE2.
    from contextfold.fold.service.fold_service import FoldService
    from contextfold.scrub.scrubber import Scrubber
    from contextfold.stores.nats.store import NatsStore
    from contextfold.stores.sqlite.store import SqliteStore

# Relative prices are in hundredths of an input token.
INPUT_PERCENT = 100


def make_policy(settings: FoldSettings) -> FoldPolicy:
    return FoldPolicy(
        SessionLimits(
            settings.context_limit or None,
            settings.hard_limit,
            settings.branch_depth,
            settings.branches_per_session,
        ),
        Thresholds(settings.warn_medium_percent, settings.warn_high_percent),
        settings.token_counter,
        settings.session_idle_secs,
        settings.archive_days,
        settings.summary_days,
        AdviceSettings(settings.branch_reminder, settings.branch_limit_tokens),
        read_models(settings),
        TokenPrices(
            INPUT_PERCENT,
            settings.price_output_percent,
            settings.price_cache_read_percent,
            settings.price_cache_write_percent,
            settings.price_cache_write_1h_percent,
        ),
        settings.recall_at_start,
        settings.trust_clock,
    )


def read_models(settings: FoldSettings) -> ModelCatalog:
    path = settings.models_file
    if not path:
        return MODELS

    # Few people have such a file, and every command on sessions comes here.
    import tomllib

    try:
        return MODELS.with_models(parse_models(tomllib.loads(read_text_file("the models", path))))
    except (tomllib.TOMLDecodeError, ModelsInvalid) as problem:
        raise SettingsError(f"the models {path}: {problem}") from None


def make_scrubber(settings: FoldSettings) -> Scrubber:
    from contextfold.scrub.rules import AllowlistInvalid
    from contextfold.scrub.scrubber import standard_scrubber

    path = settings.scrub_allowlist
    if not path:
        return standard_scrubber()
    try:
        return standard_scrubber(read_text_file("the allowlist", path))
    except AllowlistInvalid as problem:
        raise SettingsError(f"the allowlist {path}: {problem}") from None


def open_store(
    settings: FoldSettings, *, may_migrate: bool = True, on_change: Callable[[str], None] = lambda _: None
) -> SqliteStore | NatsStore:
    """Open the store. A file is opened at once; a connection to NATS is made with the first call.

    `on_change` is called with the reason when there is no connection, and with an empty text when there is one.
    """
    if settings.nats is None:
        from contextfold.stores.sqlite.store import SqliteStore

        return SqliteStore(settings.store, may_migrate=may_migrate)
    try:
        from contextfold.stores.nats.store import NatsStore
    except ImportError as problem:
        if (problem.name or "").partition(".")[0] != "nats":
            raise
        raise SettingsError(
            "a store on NATS needs the package's `nats` extra: pip install 'contextfold[nats]'"
        ) from None
    return NatsStore(settings.nats, idle_s=settings.session_idle_secs, may_make=may_migrate, on_change=on_change)


def find_damage(settings: FoldSettings) -> list[str]:
    """Check every record of a state file; returns what is damaged, in words. NATS servers check their own files."""
    return verify_file(settings.store) if settings.nats is None else []


def delete_store(settings: FoldSettings) -> None:
    """Delete everything that a state file has."""
    delete_file(settings.store)


def open_state_file(settings: FoldSettings) -> StoredSessions:
    """Open a state file for a command that reads. The file is never migrated."""
    return StoredSessions(SqliteReader(settings.store), make_policy(settings))


def make_fold_service(settings: FoldSettings, store: Store | None = None) -> FoldService:
    """Make the folding service of a process without a daemon."""
    from contextfold.fold.service.fold_service import FoldService

    return FoldService(store or open_store(settings), make_scrubber(settings), make_policy(settings))
