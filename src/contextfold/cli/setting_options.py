"""Settings as options of commands, and the page of `context help settings`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from contextfold.cli.parser import CommandParser
from contextfold.settings import SETTINGS


def add_setting(parser: CommandParser, name: str, *, is_advanced: bool = False) -> None:
    """Add the option of a setting. An advanced one is not in the help of the command."""
    setting = SETTINGS[name]
    default = f" (default: {setting.default})" if setting.default and setting.default != "0" else ""
    help = (setting.help + default).replace("%", "%%")
    help = argparse.SUPPRESS if is_advanced else help
    if setting.metavar:
        parser.add_argument(f"--{name}", metavar=setting.metavar, help=help)
    else:
        parser.add_argument(f"--{name}", action="store_const", const="on", help=help)


def add_config_option(parser: CommandParser) -> None:
    parser.add_argument("--config", metavar="FILE", help="a TOML file of settings")


def add_store_options(parser: CommandParser) -> None:
    add_setting(parser, "store")
    add_config_option(parser)


def read_setting_options(args: argparse.Namespace) -> dict[str, str]:
    """The settings that are given as options, and the file of settings, by name."""
    given = {name: getattr(args, name.replace("-", "_"), None) for name in (*SETTINGS, "config")}
    return {name: value for name, value in given.items() if value is not None}


def format_settings() -> Iterator[str]:
    yield "Every setting is a variable of the environment, and a line of the TOML file that --config or CONTEXT_CONFIG"
    yield "names. Common ones are also options of `context serve`. An option counts before a variable, and a variable"
    yield "before the file."
    yield from ("", "settings, by their name in the file and their variable:")
    for setting in SETTINGS.values():
        default = f" ({setting.default})" if setting.default else ""
        yield f"  {setting.field}, {setting.variable}"
        yield f"      {setting.help}{default}"
