# The interpreter that creates the virtual environment.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
# What comparing needs is a part of it.
COMPARABLE := $(or $(wildcard $(INSTALLED)),$(VENV)/comparable)
NATIVE := setup.py sb3_ppo_variants/engines/native/interface.hpp
SANITIZED := build/sanitized
NEWEST := build/newest
SANITIZE := -fsanitize=address,undefined -fno-sanitize-recover=undefined -g
# One thread is fastest for networks this small.
export OMP_NUM_THREADS ?= 1
# Many processes import PyTorch. Without its bytecode, which pip does not make here either, each would compile it for
# seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install native compare table1 train test lint types unit test-slow test-native test-newest fuzz \
	test-upstream test-upstream-contrib learning throughput throughput-bars stepping peers gallery docs \
	docs-look docs-serve docs-links clean

help:  ## List the targets
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

# Most of the installed modules are never imported, so not compiling them saves a minute. So does a new pip: it resolves
# the dependencies in a third of the time that Python 3.11's own pip takes. The native library is compiled meanwhile, which
# takes another minute.
$(VENV)/installed: EXTRA := dev
$(VENV)/comparable: EXTRA := benchmark
$(VENV)/installed $(VENV)/comparable: setup.cfg pyproject.toml constraints.txt $(NATIVE)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip setuptools
	$(BIN)/python setup.py -q build_ext --inplace --force & \
		WITHOUT_LIBRARY=1 $(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[$(EXTRA)]' \
		&& wait $$!
	touch $@

install: $(INSTALLED)  ## Create the virtual environment .venv with everything that the other targets need

# The instruction set of the library for development: plain, avx2 or avx512.
SET ?= plain
native:  ## Rebuild the native library for the instruction set SET only, which takes seconds
	ONLY_INSTRUCTIONS=$(SET) $(BIN)/python setup.py -q build_ext --inplace --force --build-temp build/native

compare: $(COMPARABLE)  ## Compare the variants with SB3's PPO on CartPole-v1, with a report (a few minutes)
	$(BIN)/python -m sb3_ppo_variants compare --envs CartPole-v1 --seeds 10 --timesteps 50000 --jobs 2 --out runs/first

table1: $(COMPARABLE)  ## Repeat the paper's Table 1 at full length (hours; resumes where it stopped)
	$(BIN)/python -m sb3_ppo_variants compare --config paper-table1 --protocol text --out runs/table1

train: $(INSTALLED)  ## Train PPOClip on CartPole-v1, evaluate, save, reload, plot (a few minutes)
	$(BIN)/python examples/clip.py

test: lint types unit  ## Lint, check types, run the quick tests (about four minutes with the installation)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy --num-workers 2

unit: $(INSTALLED)
	$(BIN)/pytest -n 2 --dist worksteal

test-slow: $(INSTALLED)  ## Run the slow tests, which `test` leaves out (many times as long)
	$(BIN)/pytest -m slow

fuzz: $(INSTALLED)  ## Run the fuzz targets on random examples for FUZZ_SECONDS (default: an hour)
	$(BIN)/python tests/fuzz/endlessly.py

# The interpreter is not sanitized, so the sanitizer's runtime must be preloaded; and with it the C++ runtime, without
# which it does not find what throws PyTorch's errors. Without the option, pytest would import the package beside the tests.
test-native: $(INSTALLED)  ## Test the native library under the address and undefined-behaviour sanitizers (a quarter of an hour)
	CFLAGS="$(SANITIZE)" CXXFLAGS="$(SANITIZE)" LDFLAGS="$(SANITIZE)" \
		$(BIN)/python setup.py -q build --build-base $(SANITIZED) --build-lib $(SANITIZED)/lib
	LD_PRELOAD="$$($${CXX:-c++} -print-file-name=libasan.so) $$($${CXX:-c++} -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
		$(BIN)/pytest -o pythonpath="$(SANITIZED)/lib ." tests/engines tests/objectives tests/policies/test_asymmetric.py

# PyTorch stays at the version in constraints.txt, whose wheel without CUDA is the one that the other targets install; the
# job "newest" of tests.yml takes newer ones too.
# pandas and pillow are installed last and without regard to other packages, because the metadata of rl_zoo3 and moviepy
# excludes their newest versions, with which the package must work too.
test-newest:  ## Run the quick tests with the newest versions of all dependencies, whatever constraints.txt says
	test -d $(NEWEST) || $(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/pip install --quiet --upgrade pip
	$(NEWEST)/bin/pip install --quiet --no-compile --upgrade --upgrade-strategy eager \
		--editable '.[dev]' "$$(grep '^torch==' constraints.txt)"
	$(NEWEST)/bin/pip install --quiet --no-compile --upgrade --no-deps pandas pillow
	@echo "Newer than in constraints.txt:"
	$(NEWEST)/bin/python tests/newest.py
	$(NEWEST)/bin/pytest -n 2 --dist worksteal

test-upstream: $(INSTALLED)  ## Run SB3's own test suite with each class in place of PPO (half an hour)
	for class in PPOClip PPOAdaptiveKL PPOFixedKL PPOUnclipped; do \
		$(BIN)/python tests/upstream.py $$class -n 2 || exit 1; \
	done

test-upstream-contrib: $(INSTALLED)  ## Run sb3-contrib's tests of MaskablePPO and RecurrentPPO with each class in their place
	for class in PPOClip PPOAdaptiveKL PPOFixedKL PPOUnclipped; do \
		$(BIN)/python tests/upstream_contrib.py $$class -n 2 || exit 1; \
	done

learning: $(INSTALLED)  ## Compare the scores of all variants and SB3's PPO with the recipes for two small tasks (half an hour)
	$(BIN)/python -m sb3_ppo_variants compare --envs CartPole-v1 Pendulum-v1 --seeds 5 --out runs/learning

throughput: $(INSTALLED)  ## Compare the speed of the variants with SB3's PPO (a quarter of an hour)
	$(BIN)/python -m benchmarks throughput

throughput-bars: $(INSTALLED)  ## Compare the speed on all workloads that have a target (ten minutes)
	$(BIN)/python -m benchmarks throughput --bars --json runs/throughput-bars.json

stepping: $(INSTALLED)  ## Compare the stepping speed of vector environments with SB3's (five minutes)
	$(BIN)/python -m benchmarks stepping

peers: $(INSTALLED)  ## Compare the speed with other packages, installed into the folder peers (half an hour)
	$(BIN)/python -m benchmarks peers --install

gallery: $(INSTALLED)  ## Train with the recipes and write docs/reports/gallery; skips runs that are recorded (days in all)
	$(BIN)/python -m benchmarks gallery

docs: $(INSTALLED)  ## Build the documentation site in docs/_build/html, with warnings as errors (a minute)
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

docs-look: docs  ## List the tables, code and formulas of the site that Chromium cuts off, on a desk and on a phone
	$(BIN)/python docs/measure.py docs/_build/html

docs-serve: docs  ## Serve the documentation site on http://127.0.0.1:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory docs/_build/html 8000

docs-links: $(INSTALLED)  ## Check the external links of the documentation site (needs a network)
	$(BIN)/python -m sphinx -b linkcheck docs docs/_build/links

clean:  ## Remove the virtual environment and caches
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache
