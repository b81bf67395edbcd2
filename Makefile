# Every target writes inside the repository alone: $(VENV), build and dist.

PYTHON ?= python3
VENV ?= .venv
# Extra package index for torch, such as one with CPU builds; empty: pip's own index, which has a CUDA build.
TORCH_INDEX ?=
# Extra options and base image of `docker build`; empty: the Dockerfile's own.
BUILD_OPTIONS ?=
BASE_IMAGE ?=
# For `make lock`: --upgrade takes the newest releases, --upgrade-package NAME one of them.
LOCK_OPTIONS ?=

BIN := $(VENV)/bin
# Two stamps of one environment: the serving dependencies are installed; all dependencies are.
SERVING := $(VENV)/.serving
INSTALLED := $(VENV)/.installed
SOURCES := pyproject.toml setup.py $(wildcard protos/dragoman/v1/*.proto)

CHECKPOINT := model/pretrained/en-fr
# The int8 bundle that is served; it is in the repository.
BUNDLE := model/pretrained/en-fr-int8
# The same model in float32, for tests.
FLOAT32 := build/bundle/en-fr
# Sentences that an export is proven on.
TEXTS := benchmarks/data/tatoeba.tsv
# Documents whose lines end at 100 columns.
PAGES := $(wildcard *.md docs/*.md docs/decisions/*.md examples/*.md)
# The folders under their import names, for editors and type checkers, which read imports as text.
LINKS := build/imports/dragoman
PEERS := build/peers/.installed
# Tools that make and audit the image's locks, in an environment of their own.
LOCKER := build/lock/.installed
COMPILE = build/lock/bin/uv pip compile --quiet --generate-hashes --only-binary :all: --no-annotate \
    --cache-dir build/lock/cache --custom-compile-command 'make lock' --python-version 3.11 \
    --python-platform x86_64-manylinux_2_28 $(LOCK_OPTIONS)

.PHONY: help install serve test check lint types generated image image-gpu lock audit deploy-test bundle bench bench-served families wheel wheel-test clean

help: ## List these targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 14

install: $(INSTALLED) $(LINKS) ## Install everything into .venv, editable, with generated gRPC code.

$(LINKS):
	mkdir -p $@
	ln -sfn $(foreach part,bundle client export model service protos/dragoman/v1,../../../$(part)) $@

$(INSTALLED): $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(TORCH_INDEX:%=--extra-index-url %) --editable '.[cpu,export,train,dev]'
	touch $(SERVING) $@

$(SERVING): $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --editable '.[cpu]'
	touch $@

serve: $(SERVING) ## Serve the shipped model on 127.0.0.1:50051, metrics on port 9464; needs no PyTorch.
	$(BIN)/dragoman serve $(BUNDLE)

$(FLOAT32)/manifest.json: $(wildcard $(CHECKPOINT)/* bundle/*.py export/*.py) | $(INSTALLED)
	$(BIN)/dragoman export --force --texts $(TEXTS) $(CHECKPOINT) $(FLOAT32)

# Two processes: each exports the bundles that its tests share, so more processes would repeat that work. Coverage is that
# of unit and integration tests alone: tracing PyTorch's own Python would double the time of the others.
PYTEST = $(BIN)/pytest --numprocesses 2 --dist loadfile

test: $(INSTALLED) $(FLOAT32)/manifest.json ## Run all tests, and print the coverage of unit and integration tests.
	$(PYTEST) tests/unit tests/integration --cov --cov-report term
	$(PYTEST) tests/parity tests/golden

check: lint types ## Run the linters and the type checker.

lint: $(INSTALLED) ## Check style, the protos, the imports that the architecture allows, and the width of the documents.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/buf lint protos
	$(BIN)/lint-imports
	$(BIN)/pymarkdown --disable-rules '*' --enable-rules md013 scan $(PAGES)

types: $(INSTALLED) $(LINKS) ## Check types.
	$(BIN)/mypy

generated: $(INSTALLED) ## Regenerate the dashboards, the rules, the chart and the reference pages from the code.
	$(BIN)/python -m deploy.generate deploy
	$(BIN)/python -m dragoman.service.cli.documentation docs
	$(BIN)/python -m benchmarks.chart

image: ## Build the image of the server, dragoman:cpu.
	docker build $(BUILD_OPTIONS) $(BASE_IMAGE:%=--build-arg BASE_IMAGE=%) --target runtime --tag dragoman:cpu .

image-gpu: ## Build the same for a GPU, dragoman:gpu: several gigabytes.
	docker build $(BUILD_OPTIONS) $(BASE_IMAGE:%=--build-arg BASE_IMAGE=%) --target runtime --tag dragoman:gpu \
	    --build-arg VARIANT=gpu .

lock: $(LOCKER) ## Lock the wheels of the images, with hashes (deploy/image/*.lock).
	$(COMPILE) --extra cpu --extra traces --output-file deploy/image/cpu.lock pyproject.toml
	$(COMPILE) --extra gpu --extra traces --output-file deploy/image/gpu.lock pyproject.toml
	build/lock/bin/python -c 'import tomllib; \
	    print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' > build/lock/build.in
	$(COMPILE) --output-file deploy/image/build.lock build/lock/build.in

# Strict: a package that cannot be looked up must not pass as harmless.
audit: $(LOCKER) ## Look up known vulnerabilities of the locked wheels; needs PyPI's vulnerability service.
	@for lock in deploy/image/*.lock; do \
	    echo "$$lock" && \
	    build/lock/bin/pip-audit --strict --disable-pip --require-hashes --requirement "$$lock" || \
	    { echo "audit: $$lock has known vulnerabilities, or they could not be looked up: see above" >&2; exit 1; }; \
	done

$(LOCKER): Makefile
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet uv==0.13.8 pip-audit==2.10.1
	touch $@

deploy-test: $(INSTALLED) ## Test image, docker-compose.yml, dashboards and alerts on a Docker engine: about 5 minutes.
	$(BIN)/python -m tests.deploy.trial

bench: $(PEERS) ## Measure against CTranslate2, transformers and optimum-onnx: about 30 minutes on two idle cores.
	build/peers/bin/python -m benchmarks.speed.steps
	build/peers/bin/python -m benchmarks.speed.sentences
	build/peers/bin/python -m benchmarks.results_file

bench-served: $(PEERS) ## Measure over gRPC against CTranslate2 offline: about 5 minutes on two idle cores.
	build/peers/bin/python -m benchmarks.speed.served $(BUNDLE)
	build/peers/bin/python -m benchmarks.results_file

families: $(INSTALLED) ## Compare exports of tiny imported checkpoints with transformers: about 15 minutes on two idle cores.
	$(BIN)/python -m benchmarks.quality.families

# An environment of their own, since they pin another transformers.
$(PEERS): pyproject.toml | $(INSTALLED)
	$(PYTHON) -m venv build/peers
	build/peers/bin/pip install --quiet $(TORCH_INDEX:%=--extra-index-url %) --editable '.[cpu,export]' \
	    ctranslate2==4.8.5 transformers==4.57.6 optimum-onnx==0.1.0
	touch $@

# Exported elsewhere first: in its place the export would need --force, which accepts any loss of precision.
bundle: $(INSTALLED) ## Export the shipped checkpoint to the bundle that is served.
	rm -rf build/bundle/$(notdir $(BUNDLE))
	$(BIN)/dragoman export --precision int8 --texts $(TEXTS) $(CHECKPOINT) build/bundle/$(notdir $(BUNDLE))
	rm -rf $(BUNDLE)
	mv build/bundle/$(notdir $(BUNDLE)) $(BUNDLE)

wheel: $(INSTALLED) ## Build the source archive, and the wheel from it, into dist.
	rm -rf dist
	$(BIN)/python -m build

wheel-test: wheel ## Install the wheel without torch, and translate through it.
	PYTHON=$(PYTHON) .ci/wheel-test dist/*.whl $(BUNDLE)

clean: ## Remove the output of all other targets.
	rm -rf $(VENV) build dist *.egg-info protos/dragoman/v1/*_pb2*.py* .*_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -r {} +
