# `make help` lists the targets. Everything needs only Python >= 3.11; `make lock` also needs uv.
# Choose the interpreter with PYTHON=…, pytest's arguments with ARGS=….
.DEFAULT_GOAL := help
PY := .venv/bin/python
STAMP := .venv/.set-up
export PYTHON

.PHONY: help setup doctor browser drill drills test unit lint lint-types format bench lock clean

help: ## list the targets
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements.lock pyproject.toml .ci/bootstrap
	@.ci/bootstrap
	@touch $@

setup: $(STAMP) ## make .venv from requirements.lock (again only when that changed)

doctor: setup ## say what this machine has and lacks, and how to get it
	@$(PY) -m actonce.cli doctor

browser: setup ## get a Chromium for the browser tests, where there is none
	@.ci/browser

drill: doctor ## break a real deployment on purpose: `final` and the quick set of `lost-acknowledgement`
	$(PY) -m drills run final lost-acknowledgement --quick $(if $(KEEP),--keep) $(ARGS)

drills: doctor ## the whole catalogue (FULL=1: every cell)
	$(PY) -m drills run --all $(if $(FULL),--full) $(if $(KEEP),--keep) $(ARGS)

test: doctor ## all tests (WORKERS=2: shared by two processes, for a machine with cores to spare)
	$(PY) -m pytest $(if $(WORKERS),-n $(WORKERS)) $(ARGS)

unit: setup ## only the tests that start no server
	$(PY) -m pytest tests/unit $(ARGS)

lint: setup lint-types ## ruff, mypy --strict, import rules
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	.venv/bin/lint-imports

lint-types: setup
	$(PY) -m mypy --strict $(wildcard actonce workflows activities drills worker.py client.py)

format: setup ## let ruff format the code
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: doctor ## a guarded operation beside a bare activity; writes runs/bench.json
	$(PY) -m drills.bench $(ARGS)

lock: ## pin every dependency again (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --all-extras \
	  --no-emit-index-url --no-emit-find-links --no-annotate --quiet $(if $(UPGRADE),--upgrade) \
	  --custom-compile-command "make lock" pyproject.toml -o requirements.lock

clean: ## remove what can be made again; evidence in runs/ stays
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
