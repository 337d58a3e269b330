"""The recorded run in docs/getting-started.md: `python -m tests.clients.recorded_run` records it again.

The newest Claude Code answers one question: its model, which is scripted, reads a log of 700 lines, folds it, and goes
on for five requests. What is printed, by `context run` and by `context fold list`, goes into the page as it is, with
the tokens of each prompt that the provider received.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.clients.host_days import HOSTS, KEYS, QUIET, TIMEOUT_S, Model, day_folder
from tests.support.machine import COMMAND, ROOT
from tests.support.prerequisites import HOST_PROGRAMS, NO_CLAUDE
from tests.support.upstream import Upstream
from tests.support.upstream_answers import Say

PAGE = ROOT / "docs" / "getting-started.md"
HEADING, NEXT_HEADING = "### One run, recorded\n", "### In a terminal\n"
FOLDER = "claude-newest"
QUESTION = "why does the build fail?"
SUMMARY = "build.log: 700 modules compiled; the build fails because left-pad cannot be resolved"
ANSWER = "The build fails because the dependency left-pad cannot be resolved. It is not in package.json."
SMALL_FILES = ("package.json", ".npmrc", "webpack.config.js", "src/index.js")


def record(folder: Path) -> str:
    """The section of the page."""
    host = next(host for host in HOSTS if host.folder == FOLDER)
    program = HOST_PROGRAMS[FOLDER]
    home, project = folder, folder / "shop"
    (project / "src").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", project], check=True)
    log = "".join(f"[{number}/700] compiled src/module_{number}.js in 12 ms\n" for number in range(1, 701))
    (project / "build.log").write_text(log + "ERROR in ./src/index.js: Can't resolve 'left-pad'\n")
    for name in SMALL_FILES:
        (project / name).write_text(f"// {name}\n" * 4)
    model = Model(host, project)
    model.will_say(Say("", (host.read("call_log", str(project / "build.log")),)))
    model.will(f"fold {SUMMARY}")
    for number, name in enumerate(SMALL_FILES):
        model.will_say(Say("", (host.read(f"call_small_{number}", str(project / name)),)))
    model.will(ANSWER)
    with Upstream(model) as upstream:
        env = {"PATH": f"{program.parent}:/usr/bin:/bin", "HOME": str(home), **KEYS, **QUIET}

        def run(*argv: str | Path, is_mixed: bool = False) -> str:
            done = subprocess.run(
                argv,
                cwd=project,
                env=env | ({"ANTHROPIC_BASE_URL": upstream.url} if is_mixed else {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if is_mixed else None,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            assert done.returncode == 0, (argv, done.stdout)
            return done.stdout

        options = ("--model", "claude-sonnet-4-5", "--allowedTools", "mcp__contextfold", "Read")
        said = run(COMMAND, "run", program.name, "-p", QUESTION, *options, is_mixed=True)
        listed = run(COMMAND, "fold", "list")
        status = run(COMMAND, "fold", "status")
        prompts = [got.billed.prompt for got in upstream.requests if got.billed]
    version = re.findall(r"\d+\.\d+\.\d+", run(program, "--version"))[0]
    facts = dict(line.split(maxsplit=1) for line in status.splitlines())
    *most, last = (f"{tokens:,}" for tokens in prompts)
    return f"""{HEADING}
Claude Code {version} with a scripted provider, whose model reads a log of 700 lines, folds it, and goes on for five
requests, at list prices. `python -m tests.clients.recorded_run` records it again.

```text
$ context run claude -p '{QUESTION}'
{said.strip()}
$ context fold list | cat
{listed.strip()}
```

The provider received prompts of {", ".join(most)} and {last} tokens: together the {sum(prompts):,} above. The last of
them is the main thread's {int(facts["main-thread"]):,} tokens and {int(facts["host-prompt"]):,} of the host's own
prompt and tools.

"""


def main() -> int:
    if FOLDER not in HOST_PROGRAMS:
        print(NO_CLAUDE, file=sys.stderr)
        return 1
    with day_folder() as folder:
        section = record(folder)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(HEADING)
    _, _, after = rest.partition(NEXT_HEADING)
    PAGE.write_text(before + section + NEXT_HEADING + after, encoding="utf-8")
    print(section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
