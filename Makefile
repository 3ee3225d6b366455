.PHONY: demo test quick lint clean
.DEFAULT_GOAL := demo

PYTHONS ?= python3.11 python3.12 python3.13 python3.14 python3 python
VENV := .venv
BIN := $(VENV)/bin
# Tests compile some ten thousand small programs: with XLA's dearest passes left out they take two thirds of the time.
# Two workers fill two cores: threads of BLAS and XLA (NPROC) would wait for work in a loop.
QUICK := MPLBACKEND=Agg NPROC=1 OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 JAX_DISABLE_MOST_OPTIMIZATIONS=1 \
  XLA_FLAGS='--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1'
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

demo: $(VENV)/.ready
	@$(BIN)/tractable compare --example beta-bernoulli --methods map,rejection,metropolis,mala,nuts,sgld --out runs/demo
	@echo "The report is in runs/demo/report.html; open it in a browser."

# Between commits: lint, types and a cross-section of the tests.
quick: lint
	$(QUICK) TRACTABLE_TYPECHECK=0 $(BIN)/pytest tests/test_floors.py tests/tools tests/checks tests/test_contract.py \
	  tests/test_preflight_ladders.py tests/models/test_belief.py tests/models/test_conjugate.py tests/laws/test_points.py \
	  -m "not slow" -n 2 -q

test: lint
	$(QUICK) $(BIN)/pytest tests -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations 30
	$(QUICK) $(BIN)/pytest --doctest-modules src

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

clean:
	rm -rf $(VENV) runs build dist .cache .pytest_cache .ruff_cache examples/out
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
