"""`context completion`: a script for bash, zsh or fish, written from the table of commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from contextfold.cli.command import Command, Option
from contextfold.cli.help import COMMANDS
from contextfold.cli.output import print_answer
from contextfold.errors import EXIT_OK

GLOBAL_OPTIONS = ("--help", "--version")


def run_completion(values: Mapping[str, str]) -> int:
    print_answer({"bash": bash, "zsh": zsh, "fish": fish}[values["shell"]]())
    return EXIT_OK


def bash() -> str:
    return f"""\
_context() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} command=${{COMP_WORDS[1]}}
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join([*_first_words(), *GLOBAL_OPTIONS])}" -- "$word"))
        return
    fi
    case "$command" in
{_lines(_bash_groups())}
    esac
    case "$command $before" in
{_lines(_bash_values())}
    esac
    case "$command" in
{_lines(_bash_options(command) for command in COMMANDS)}
    esac
}}
complete -F _context context
"""


def _bash_values() -> Iterator[str]:
    for command in COMMANDS:
        for option in command.options:
            if option.metavar:
                offered = _bash_paths(option) or f'-W "{" ".join(option.choices)}"'
                yield f'        "{command.name} {option.name}") COMPREPLY=($(compgen {offered} -- "$word")); return ;;'


def _bash_paths(option: Option) -> str:
    return "-f" if option.takes_file else "-d" if option.takes_folder else ""


def _bash_groups() -> Iterator[str]:
    for group, words in _groups().items():
        yield f'        {group}) command="$command ${{COMP_WORDS[2]}}"'
        offered = f'COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$word"))'
        yield f'            [ "$COMP_CWORD" -eq 2 ] && {offered} && return ;;'


def _bash_options(command: Command) -> str:
    words = [option.name for option in command.options]
    paths = ""
    if command.argument:
        words = [*command.argument.choices, *words]
        paths = _bash_paths(command.argument)
    return f'        "{command.name}") COMPREPLY=($(compgen {paths} -W "{" ".join(words)} --help" -- "$word")) ;;'


def zsh() -> str:
    return f"""\
#compdef context
_context() {{
    if (( CURRENT == 2 )); then
        local -a commands=({" ".join(_quoted(f"{name}:{summary}") for name, summary in _first_words().items())})
        _describe command commands
        compadd -- {" ".join(GLOBAL_OPTIONS)}
        return
    fi
    local command="${{words[2]}}"
    case "$command" in
{_lines(_zsh_groups())}
    esac
    case "$command" in
{_lines(f'        "{command.name}") _arguments {_zsh_specs(command)} ;;' for command in COMMANDS)}
    esac
}}
if [ "$funcstack[1]" = _context ]; then _context "$@"; else compdef _context context; fi
"""


def _zsh_groups() -> Iterator[str]:
    for group, words in _groups().items():
        offered = f"(( CURRENT == 3 )) && {{ compadd -- {' '.join(words)}; return; }}"
        yield f'        {group}) {offered}; command="$command ${{words[3]}}" ;;'


def _zsh_specs(command: Command) -> str:
    specs = ["--help[show help]"]
    for option in command.options:
        again = "*" if option.is_repeatable else ""
        specs.append(
            f"{again}{option.name}[{option.help}]"
            + (f":{option.metavar}:{_zsh_action(option)}" if option.metavar else "")
        )
    if command.argument:
        specs.append(f"{1 + len(command.name.split())}:{command.argument.metavar}:{_zsh_action(command.argument)}")
    return " ".join(_quoted(spec) for spec in specs)


def _zsh_action(option: Option) -> str:
    if option.takes_file:
        return "_files"
    if option.takes_folder:
        return "_files -/"
    return f"({' '.join(option.choices)})" if option.choices else " "


def fish() -> str:
    return "\n".join(_fish_lines()) + "\n"


def _fish_lines() -> Iterator[str]:
    yield "complete -c context -f"
    yield "complete -c context -n __fish_use_subcommand -l version -d 'show the version'"
    for name, summary in _first_words().items():
        yield f"complete -c context -n __fish_use_subcommand -a {name} -d {_quoted(summary)}"
    for group, words in _groups().items():
        only = f"__fish_seen_subcommand_from {group}; and not __fish_seen_subcommand_from {' '.join(words)}"
        yield f"complete -c context -n '{only}' -xa '{' '.join(words)}'"
    for command in COMMANDS:
        seen = f"-n '{'; and '.join(f'__fish_seen_subcommand_from {word}' for word in command.name.split())}'"
        for option in command.options:
            values = _fish_values(option)
            name = f"-l {option.key}" if option.name.startswith("--") else f"-s {option.key}"
            yield f"complete -c context {seen} {name} {values} -d {_quoted(option.help)}"
        if command.argument:
            values = _fish_values(command.argument)
            yield f"complete -c context {seen} {values}" + (" -a ''" if values == "-x" else "")


def _fish_values(option: Option) -> str:
    if option.choices:
        return f"-xa '{' '.join(option.choices)}'"
    if option.takes_file:
        return "-rF"
    if option.takes_folder:
        return "-xa '(__fish_complete_directories)'"
    return "-x" if option.metavar else ""


def _first_words() -> dict[str, str]:
    """The words that may follow `context`, each with its summary. A group has the summary of its first command."""
    return {command.group or command.name: command.summary for command in reversed(COMMANDS)}


def _groups() -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for command in COMMANDS:
        if command.group:
            groups.setdefault(command.group, []).append(command.name.partition(" ")[2])
    return groups


def _lines(lines: Iterator[str]) -> str:
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
