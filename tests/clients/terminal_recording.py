"""Records what a terminal shows of two runs of Claude Code with a pause between them, as the picture of the README.

`python -m tests.clients.terminal_recording FOLDER` writes `run-light.svg` and `run-dark.svg`. The program is the newest
one that `make programs` installs; its provider is scripted, and the daemon's clock is advanced for the pause.
"""

from __future__ import annotations

import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.style import Style
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, DIMMED_MONOKAI, TerminalTheme
from rich.text import Text

from tests.clients.host_days import HOSTS, TIMEOUT_S, Day, day_folder, version_of
from tests.support.machine import COMMAND
from tests.support.upstream_answers import Say

WIDTH = 100
PAUSE_S = 74 * 60
THEMES: dict[str, TerminalTheme] = {"light": DEFAULT_TERMINAL_THEME, "dark": DIMMED_MONOKAI}
# The picture uses the fonts of its reader; nothing is fetched.
FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)
COMMENT, PROMPT, NOTE = Style(dim=True), Style(bold=True), Style(color="green")


class Shown(NamedTuple):
    text: str
    style: Style = Style()


def record() -> list[Shown]:
    host = next(host for host in HOSTS if host.folder == "claude-newest")
    with day_folder() as folder:
        day = Day(host, folder)
        try:
            lines = [Shown(f"# Claude Code {version_of(host, day)}, with a scripted provider", COMMENT)]
            reads = [f"read {name}" for name in ("orders", "logins", "sessions", "cookies", "clock")]
            lines += _run(day, "why do logins fail?", *reads, "Sessions expire at once: expiresAt is in seconds.")
            day.daemon.advance_clock(PAUSE_S)
            lines += [Shown(""), Shown("# 74 minutes later, the provider has forgotten the prompt", COMMENT)]
            lines += _run(day, "fix it, with a test", "read store", "Fixed, and tests/test_session.py passes.")
            lines += [Shown(""), *_status(day)]
            return lines
        finally:
            day.close()


def _run(day: Day, question: str, *steps: str) -> list[Shown]:
    is_first = not day.upstream.requests
    day.model.will(*steps[:-1])
    day.model.will_say(Say(steps[-1]))
    words = [question if word == "PROMPT" else word for word in (day.host.first if is_first else day.host.later)]
    done = subprocess.run(
        day.argv(*words),
        cwd=day.project,
        env=day.env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=TIMEOUT_S,
        check=True,
    )
    typed = f'context run claude {"" if is_first else "--continue "}-p "{question}"'
    notes = [Shown(line.replace(f"--url {day.recorder.url} ", ""), NOTE) for line in done.stderr.splitlines()]
    return [Shown(f"$ {typed}", PROMPT), *(Shown(line) for line in done.stdout.splitlines()), *notes]


def _status(day: Day) -> list[Shown]:
    argv = [str(COMMAND), "fold", "status", "--store", str(day.daemon.store)]
    done = subprocess.run(argv, cwd=day.project, env=day.env, capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.split(" ")[0] in ("tokens", "left-out", "sent", "saved")]
    return [Shown("$ context fold status", PROMPT), *(Shown(line) for line in lines)]


def draw(lines: list[Shown], theme: TerminalTheme) -> str:
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(Text(line.text, style=line.style))
    return FONT.sub("", console.export_svg(title="context run", theme=theme, unique_id="run"))


def main() -> None:
    folder, lines = Path(sys.argv[1]), record()
    for name, theme in THEMES.items():
        (folder / f"run-{name}.svg").write_text(draw(lines, theme), encoding="utf-8")
    print("\n".join(line.text for line in lines))


if __name__ == "__main__":
    main()
