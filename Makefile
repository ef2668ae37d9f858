# The documented entry points; `make help` lists them. PYTHON chooses the interpreter that .venv is made from.
PYTHON ?= python3
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
KERNEL := services/tailrace/kernel
KERNEL_SOURCES := $(wildcard $(KERNEL)/*.pyx $(KERNEL)/*.pxd $(KERNEL)/*.h)
SUITES ?=
SUITES_RUN = $(BIN)/python scripts/run_suites.py
SIMULATE = $(BIN)/python tests/simulation/run.py $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SECONDS_MAX),--seconds $(SECONDS_MAX)) \
    $(if $(SEED),--seed $(SEED)) $(if $(FIRST),--first $(FIRST)) $(if $(WORKLOAD),--workload $(WORKLOAD)) \
    $(if $(BUG),--bug $(BUG)) $(if $(JOBS),--jobs $(JOBS)) $(if $(JSON),--json)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

# ---- environment

$(STAMPS)/venv:
	@scripts/check-host.sh "$(PYTHON)"
	@echo "making $(VENV)"
	@"$(PYTHON)" -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/dependencies: requirements/dev.lock | $(STAMPS)/venv
	@echo "installing the locked dependencies"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-compile -r requirements/dev.lock
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib
	@touch $@

# PySpark looks for plug-ins in the folders of sys.path, of which an editable installation has none.
define PLUGINS_PATH
import pathlib, sysconfig
folder = pathlib.Path(sysconfig.get_path("purelib"))
(folder / "tailrace-plugins.pth").write_text(f"{pathlib.Path('services').resolve()}\n")
endef
export PLUGINS_PATH

$(STAMPS)/package: pyproject.toml setup.py $(KERNEL_SOURCES) $(STAMPS)/dependencies
	@echo "building the native kernel"
	@scripts/check-host.sh $(BIN)/python
	@PYTHONWARNINGS="ignore:Editable installation" \
	    $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation --no-deps --editable .
	@$(BIN)/python -c "$$PLUGINS_PATH"
	@$(BIN)/python setup.py --quiet build_ext --inplace
	@$(BIN)/python -m compileall -q -j 0 services operator  # also where PYTHONDONTWRITEBYTECODE is set
	@touch $@
	@if [ "$${TAILRACE_STRICT_BUILD:-}" = 1 ]; then touch $(STAMPS)/strict-build; fi  # this was one

.PHONY: setup
setup: $(STAMPS)/package ## prepare .venv: locked dependencies, native kernel (does nothing when nothing changed)

.PHONY: lock
lock: | $(STAMPS)/venv ## regenerate the lock files from pyproject.toml: dev, runtime, image (runtime and operator), spark, build
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip-tools>=7.6,<8"
	@for name in dev runtime image spark build; do \
	    extra=--constraint=requirements/dev.lock; sources="pyproject.toml requirements/build.in"; \
	    case $$name in \
	        dev) extra=--extra=dev; sources="$$sources requirements/fuzz.in" ;; \
	        image) extra="$$extra --extra=operator"; sources=pyproject.toml ;; \
	        spark) sources=requirements/spark.in ;; \
	        build) sources=requirements/build.in ;; \
	    esac; \
	    PIP_FIND_LINKS= CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/python -m piptools compile --quiet --strip-extras \
	        --generate-hashes --allow-unsafe --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
	        $(LOCK_OPTIONS) $$extra --output-file=requirements/$$name.lock $$sources; \
	done

# ---- checks

# The native build with every warning an error; its result is not used. With TAILRACE_STRICT_BUILD=1 `setup` does it.
$(STAMPS)/strict-build: $(STAMPS)/package
	@echo "building the native kernel with warnings as errors"
	@TAILRACE_STRICT_BUILD=1 $(BIN)/python setup.py --quiet build_ext --force \
	    --build-lib build/strict --build-temp build/strict-temp
	@touch $@

.PHONY: lint
lint: $(STAMPS)/strict-build ## ruff, mypy, import contracts and circles, layout, citations, words, generated files, warnings of the native build
	$(BIN)/ruff check .
	scripts/check-types.sh
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/check_import_circles.py
	scripts/check-layout.sh
	$(BIN)/python scripts/check_citations.py
	$(BIN)/python scripts/check_words.py
	$(BIN)/python scripts/make_picture.py --check
	$(BIN)/python scripts/make_proto.py --check
	$(BIN)/python scripts/make_crds.py --check

.PHONY: test
test: setup ## every suite in its short form (SUITES="unit contract" for some)
	@$(SUITES_RUN) ci $(SUITES)

.PHONY: test-full
test-full: setup ## every suite in its long form
	@$(SUITES_RUN) full $(SUITES)

.PHONY: nightly
nightly: setup ## everything in its long form, also on a real cluster (as root): build/nightly/report.md and .json
	@$(SUITES_RUN) full --report build/nightly everything || status=$$?; $(CLUSTER) down; exit $${status:-0}

.PHONY: simulate
simulate: setup ## seeds of the simulator (SEEDS=200, SECONDS_MAX=60, WORKLOAD=name; SEED=n replays one; BUG=name hunts a planted bug, BUG=list)
	@$(SIMULATE)

.PHONY: simulate-bugs
simulate-bugs: setup ## every planted bug must be found by the checkers of the simulator
	@$(SIMULATE) --bug all

.PHONY: fuzz
fuzz: setup ## fuzzing of the decoders, guided by coverage (RUNS=20000 of each target, SECONDS_MAX=600 of all, TARGET=name, SEED=n, JSON=1)
	@$(BIN)/python tests/fuzz/fuzz.py $(if $(RUNS),--runs $(RUNS)) $(if $(SECONDS_MAX),--seconds $(SECONDS_MAX)) \
	    $(if $(TARGET),--target $(TARGET)) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json)

.PHONY: spec
spec: | $(STAMPS)/venv ## model checking of spec/: the good models and every planted fault (MODEL=name for some)
	@jar=$$(PYTHON=$(BIN)/python tests/support/tlc.sh) && $(BIN)/python scripts/check_spec.py $(SPEC_OPTIONS) "$$jar" $(MODEL)

.PHONY: proto
proto: setup ## generate the gRPC stubs from services/tailrace/rpc/*.proto
	$(BIN)/python scripts/make_proto.py

.PHONY: crds
crds: setup ## generate crds/, the copy of it in the chart, and docs/resources.md
	$(BIN)/python scripts/make_crds.py

.PHONY: picture
picture: setup ## draw docs/architecture.svg from docs/architecture.picture
	@$(BIN)/python scripts/make_picture.py

.PHONY: sanitize
sanitize: setup ## kernel tests under the address and undefined-behaviour sanitizers
	@scripts/sanitize.sh

# ---- a real Kubernetes (docs/testing-on-kubernetes.md)

CLUSTER := PYTHON=$(PYTHON) $(PYTHON) tests/e2e/cluster

.PHONY: e2e-up
e2e-up: ## build and start the local cluster for tests (as root); prints its kubeconfig
	@$(CLUSTER) up

.PHONY: e2e-down
e2e-down: ## end the local cluster; nothing of it stays but the cache of what was built
	@$(CLUSTER) down

.PHONY: e2e
e2e: setup ## the tests on a real cluster in their short form (E2E_KUBECONFIG=file for another cluster)
	@$(SUITES_RUN) ci e2e/api e2e/kubernetes

.PHONY: e2e-full
e2e-full: setup ## the tests on a real cluster in their long form
	@$(SUITES_RUN) full e2e/api e2e/kubernetes

KIND_CLUSTER := $(shell sed -n 's/^name: //p' kind-config.yaml)

.PHONY: kind-up
kind-up: images ## a cluster of kind with our images, for machines with a container engine
	@command -v kind >/dev/null || { echo "kind-up: there is no kind in PATH: https://kind.sigs.k8s.io" >&2; exit 1; }
	@kind get clusters 2>/dev/null | grep -qx "$(KIND_CLUSTER)" || kind create cluster --config kind-config.yaml --wait 120s
	@for archive in build/images/*.tar; do kind load image-archive --name "$(KIND_CLUSTER)" "$$archive"; done

.PHONY: kind-down
kind-down: ## delete the cluster of kind
	@command -v kind >/dev/null || { echo "kind-down: there is no kind in PATH: https://kind.sigs.k8s.io" >&2; exit 1; }
	@kind delete cluster --name "$(KIND_CLUSTER)"

# ---- product

.PHONY: run
run: setup ## stream a real data set through a standalone server and keep it serving (EXIT=1 ends instead)
	@$(BIN)/python -m tailrace.cli.demo $(if $(EXIT),--exit)

.PHONY: bench
bench: setup ## measure ingest and read on this machine
	$(BIN)/tailrace bench ingest
	$(BIN)/tailrace bench read

.PHONY: images
images: setup ## container images, without an engine or a registry (IMAGES="tailrace tailrace-test tailrace-test-java minio" or all; AGAIN=1 renews)
	@nice $(BIN)/python scripts/make_images.py $(if $(AGAIN),--again) $(IMAGES)

.PHONY: clean
clean: ## remove builds, caches and .venv (keeps .tailrace)
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find services operator -name '*.so' -o -name '*.egg-info' -prune 2>/dev/null | xargs -r rm -rf
	find services operator scripts tests -name __pycache__ -prune | xargs -r rm -rf
