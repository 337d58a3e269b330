"""What a command and an option are in the table of commands."""

from __future__ import annotations

from contextfold.record import Record


class Option(Record):
    name: str
    help: str
    metavar: str = ""  # a switch, if empty
    required: bool = False
    choices: tuple[str, ...] = ()
    default: str | None = None
    takes_folder: bool = False
    takes_file: bool = False
    is_repeatable: bool = False

    @property
    def key(self) -> str:
        return self.name.lstrip("-")


class Command(Record):
    name: str
    summary: str
    description: tuple[str, ...]
    examples: tuple[str, ...]
    options: tuple[Option, ...] = ()
    argument: Option | None = None
    has_settings: bool = False  # that its help lists

    @property
    def group(self) -> str:
        """The first word of a name that has two."""
        return self.name.partition(" ")[0] if " " in self.name else ""
