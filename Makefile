# Two commands for users: `make demo` and `make test`. Everything lives in .venv; nothing else is touched.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
BENCH_FLAGS ?= --quick
BACKEND ?= $(shell [ "$$(uname -s)" = Darwin ] || echo cpu,)

.PHONY: demo test lint docs bench blame-score clean
demo: $(VENV)/.installed
	@$(BIN)/divtrace demo

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Warnings are errors. Silenced is only the theme's notice about its own future.
docs: $(VENV)/.installed-dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q --strict -f docs/site/mkdocs.yml
	@echo "out/site/index.html"

bench: $(VENV)/.installed-dev
	$(BIN)/python -m engine.bench $(BENCH_FLAGS) --model "$$($(BIN)/python -c 'from divtrace.model_store import fetch_smollm2; print(fetch_smollm2())')"
	$(BIN)/python -m divtrace.bench

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "divtrace needs Python 3.11 or newer; run: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[$(BACKEND)invariant]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[$(BACKEND)invariant,dev]'
	@touch $@ $(VENV)/.installed

blame-score: $(VENV)/.installed-dev
	$(BIN)/python -m tests.faults.score

clean:
	rm -rf $(VENV) out demo-out
