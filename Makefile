# Everything runs in .venv, which is made on first use and remade when its inputs change.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: eval test lint bench docs clean

eval: $(READY)  ## the main job, offline: 115 retail tasks, their gold actions replayed
	$(BIN)/reward-kit agent-eval --dataset tau_retail_task/task.jsonl --agent gold

test: $(READY)  ## all tests
	$(BIN)/python -m pytest -n 2

lint: $(READY)  ## style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## the benchmarks; each prints ratios against a baseline of the same run
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

docs: $(READY)  ## run every example of the documentation
	$(BIN)/python -m pytest tests/docs

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
