.PHONY: demo quick test laws docs lint clean
.DEFAULT_GOAL := demo

PYTHONS ?= python3.11 python3.12 python3.13 python3.14 python3 python
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

demo: $(VENV)/.ready
	@$(BIN)/tractable compare --example beta-bernoulli --methods map,rejection,metropolis,mala,nuts,sgld --out runs/demo
	@echo "The report is in runs/demo/report.html; open it in a browser."

# Lint, types, and the tests that trace nothing.
quick: $(VENV)/.ready-dev
	$(BIN)/python tests/suite.py quick

# What CI runs first: also a law of each method, the main paths, and the examples of docstrings.
test: $(VENV)/.ready-dev
	$(BIN)/python tests/suite.py test

# Everything: make laws SHARD=2/4 for a part of it, CHANGED=COMMIT for what changed, BUDGET=SECONDS to stop then.
laws: $(VENV)/.ready-dev
	$(BIN)/python tests/suite.py laws $(if $(SHARD),--shard $(SHARD)) $(if $(CHANGED),--changed $(CHANGED)) \
	  $(if $(ROTATE),--rotate $(ROTATE)) $(if $(BUDGET),--budget $(BUDGET))

# The site, from the pages and docstrings; warnings are errors.
docs: $(VENV)/.ready
	$(PIP) install -c constraints.txt -e '.[docs]'
	$(BIN)/python -m sphinx -W -q -b html docs docs/_build/html
	@echo "The site is in docs/_build/html/index.html; open it in a browser."

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

clean:
	rm -rf $(VENV) runs build dist .cache .laws .pytest_cache .ruff_cache examples/out docs/_build docs/reference
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# Each name is run, not only looked up: version managers leave names behind which start nothing,
# and some systems ship a Python without ensurepip.
$(VENV)/.python:
	@for python in $(PYTHONS); do \
	  if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	      rm -rf $(VENV) && $$python -m venv $(VENV) || exit 1; \
	    fi; \
	    touch $@; exit 0; \
	  fi; \
	done; \
	echo "Expected Python 3.11 or newer with venv and ensurepip; tried: $(PYTHONS)." \
	  "Install one, or name it: make PYTHONS=/path/to/python3" >&2; exit 1

$(VENV)/.ready: pyproject.toml constraints.txt | $(VENV)/.python
	@echo "Installing tractable into $(VENV) (a few minutes the first time)."
	@$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml constraints.txt | $(VENV)/.python
	@echo "Installing tractable and its development tools into $(VENV) (a few minutes the first time)."
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.ready $@
