"""Chooses the caches for a command: the named ones, all below a root, or the nearest one."""

from __future__ import annotations

import argparse
import os

from contextfold.cli.parser import CommandParser, UsageError
from contextfold.common.relevance.question import CACHES_MAX
from contextfold.errors import CacheMissing, QueryInvalid
from contextfold.resolve.cache_format import DEFAULT_CACHE, MANIFEST_FILE
from contextfold.resolve.root import CacheRoot
from contextfold.resolve.service import Cache


def add_cache_options(parser: CommandParser) -> None:
    """Add the options that name the caches to ask."""
    parser.add_argument(
        "--cache",
        metavar="DIR",
        action="append",
        default=[],
        help="a cache; may be repeated (default: the nearest one)",
    )
    parser.add_argument("--cache-root", metavar="DIR", help="ask every cache in this folder")


def add_counter_option(parser: CommandParser) -> None:
    parser.add_choice(
        "--counter",
        ("estimate-1", "o200k"),
        "how tokens are counted; o200k needs the extra of that name",
        default="estimate-1",
    )


def choose_caches(args: argparse.Namespace) -> list[tuple[str, Cache]]:
    """The caches, each with the name that is the prefix of its ids. The name of a single cache is empty."""
    paths = [_cache_at(path) for path in args.cache]
    if "" in args.cache:
        raise UsageError("--cache is empty; give a folder")
    if args.cache_root == "":
        raise UsageError("--cache-root is empty; give a folder")
    if args.cache_root is not None:
        # The same caches as the tools see: folders themselves, not what links lead to.
        root = args.cache_root
        if not os.path.isdir(root):
            raise CacheMissing(f"{root} is not a folder; give the folder that has the caches")
        found = [listed.path for listed in CacheRoot(os.fsencode(root)).list() if listed.has_manifest]
        if not found:
            raise CacheMissing(f"there is no cache in {root}; `context build DIR --cache {root}/NAME` makes one")
        paths += [os.path.join(root, name) for name in found]
    if not paths:
        paths = [nearest_cache(os.getcwd())]
    if len(paths) > CACHES_MAX:
        raise UsageError(f"at most {CACHES_MAX} caches can be asked at once")
    if len(paths) == 1:
        return [("", Cache(paths[0]))]
    names = [cache_name(path) for path in paths]
    if len(set(names)) != len(names):
        raise UsageError("two of the caches have the same name; ask them one by one")
    return [(name, Cache(path)) for name, path in zip(names, paths, strict=True)]


def nearest_cache(folder: str) -> str:
    """The default cache of a folder or of the nearest one above it."""
    above, at = None, folder
    while at != above:
        candidate = os.path.join(at, DEFAULT_CACHE)
        if _is_cache(candidate):
            return candidate
        above, at = at, os.path.dirname(at)
    raise CacheMissing(
        f"no {DEFAULT_CACHE} in {folder} or above; make one with `context build DIR`, or name one with --cache"
    )


def decode_query(argument: str) -> str:
    """The argument's own bytes read as UTF-8, whatever the locale made of them."""
    try:
        return os.fsencode(argument).decode("utf-8")
    except UnicodeError:
        raise QueryInvalid("the query is not UTF-8; check your terminal's encoding") from None


def _cache_at(path: str) -> str:
    """The cache at a path; for a folder of documents, its default cache."""
    own = os.path.join(path, DEFAULT_CACHE)
    return own if path and not _is_cache(path) and _is_cache(own) else path


def _is_cache(path: str) -> bool:
    return os.path.isfile(os.path.join(path, MANIFEST_FILE))


def cache_name(path: str) -> str:
    """The name of the cache's folder; for a default cache, the name of its parent folder."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.basename(folder) if name == DEFAULT_CACHE else name
