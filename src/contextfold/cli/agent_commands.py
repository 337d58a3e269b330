"""The table of the commands for agent programs: run, install, hook …"""

from __future__ import annotations

from contextfold.cli.command import TOKEN_VARIABLE, URL, YES, Command, Option

HOST = Option(
    "host",
    "the program to be configured",
    "HOST",
    required=True,
    choices=("claude-code", "claude-desktop", "cursor", "vscode", "codex", "opencode", "gemini-cli", "zed", "windsurf"),
    aliases={"claude": "claude-code", "code": "vscode", "vs-code": "vscode", "gemini": "gemini-cli"},
)
INSTALLED_PROJECT = Option("--project", "write the files of this project instead of your own", "DIR", takes_folder=True)
USER = Option("--user", "write your own files, for all projects (the default if the program has such files)")
DRY_RUN = Option("--dry-run", "print the changes and write nothing")

COMMANDS: tuple[Command, ...] = (
    Command(
        "run",
        "start an agent program with folding, for this one run",
        (
            "Start a program with the daemon behind it. Claude Code gets the proxy, the tools, the hooks and",
            "the skill; codex, opencode and gemini get the proxy and the tools; any other program gets the",
            "proxy by ANTHROPIC_BASE_URL, OPENAI_BASE_URL and GOOGLE_GEMINI_BASE_URL. No file of the project",
            "or of yours changes. If no daemon answers, one runs for as long as the program does. Everything",
            "behind the program's name is passed on to it, and its exit status is that of this command.",
        ),
        (
            "context run claude",
            "context run claude -p 'why does the build fail?'",
            "context run codex",
            "context run --tools fold,resolve claude",
            "context run python my_agent.py",
        ),
        (
            Option(
                "--tools",
                "the tools to offer: resolve, fold or both (default: context_fold and context_expand)",
                "LIST",
            ),
            URL,
            TOKEN_VARIABLE,
        ),
        argument=Option("program", "the program and its arguments", "PROGRAM", required=True),
        takes_rest=True,
    ),
    Command(
        "statusline",
        "print one line for a host's status bar",
        (
            "Print the tokens, the open branch and the saving of the project's session, in one line. Claude",
            'Code runs it with {"statusLine": {"type": "command", "command": "context statusline"}} in its',
            "settings.json.",
        ),
        ("context statusline", "context statusline --url http://localhost:9100"),
        (URL, TOKEN_VARIABLE),
    ),
    Command(
        "install",
        "connect an agent program to the daemon",
        (
            "Write our server and our hooks into an agent host's own configuration files, once you have seen the",
            "difference. Everything else in the files stays as it is, to the byte. Without --stdio and",
            "--cache-root it is the daemon that `context serve` runs: the host calls it, and its hooks tell it",
            "what the agent does. With one of them the host starts `context serve --stdio` itself, and there",
            "are no hooks.",
        ),
        (
            "context install claude-code",
            "context install vscode --project ~/work/app --dry-run",
            "context install cursor --url https://ctx.example.org --token-variable CONTEXT_TOKEN",
            "context install claude-code --cache-root caches",
        ),
        (
            URL,
            TOKEN_VARIABLE,
            Option(
                "--stdio", "have the host start a stdio server itself; CONTEXT_CACHE_ROOT names its folder of caches"
            ),
            Option(
                "--cache-root",
                "the folder that holds the caches of a server that the host starts",
                "DIR",
                takes_folder=True,
            ),
            INSTALLED_PROJECT,
            USER,
            Option("--force", "replace an entry named contextfold that `context install` did not write"),
            YES,
            DRY_RUN,
        ),
        argument=HOST,
    ),
    Command(
        "uninstall",
        "remove what install wrote",
        (
            "Remove our server and our hooks from an agent host's configuration files, and print the difference.",
            "Without edits in between, the files are what they were before `context install`, to the byte; with",
            "edits, they stay.",
        ),
        ("context uninstall claude-code", "context uninstall cursor --user --dry-run"),
        (INSTALLED_PROJECT, USER, YES, DRY_RUN),
        argument=HOST,
    ),
    Command(
        "hook",
        "pass a hook's report on to the daemon",
        (
            "Read one hook's JSON from stdin, send it to the daemon, and print what the daemon wants the host to",
            "know, mostly nothing. `context install` writes this command where a host cannot call the daemon",
            "itself. A daemon that is down, slow or unwilling is no failure: the agent must not notice.",
        ),
        ("context hook cursor < hook.json", "context hook claude-code --url http://localhost:9100 < hook.json"),
        (URL, TOKEN_VARIABLE),
        argument=Option(
            "host", "the host whose hook this is", "HOST", required=True, choices=("claude-code", "cursor", "vscode")
        ),
    ),
    Command(
        "completion",
        "print a script that completes this command in your shell",
        ("Print a completion script for your shell.",),
        (
            "source <(context completion bash)",
            "context completion zsh > ~/.zfunc/_context",
            "context completion fish > ~/.config/fish/completions/context.fish",
        ),
        argument=Option("shell", "your shell", "SHELL", required=True, choices=("bash", "zsh", "fish")),
    ),
)
