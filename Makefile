# Everything is made inside the repository, in $(VENV), build and dist.

PYTHON ?= python3
VENV ?= .venv
# One more package index to find torch on, such as one with builds for the CPU; empty: pip's own index, a CUDA build.
TORCH_INDEX ?=
# For `docker build`: more of its options, and what the image is built on; empty: the Dockerfile's own.
BUILD_OPTIONS ?=
BASE_IMAGE ?=
# For `make lock`: --upgrade takes the newest releases, --upgrade-package NAME one.
LOCK_OPTIONS ?=

BIN := $(VENV)/bin
# Two stamps of one environment: what serves is in it; all is in it.
SERVING := $(VENV)/.serving
INSTALLED := $(VENV)/.installed
SOURCES := pyproject.toml setup.py $(wildcard protos/dragoman/v1/*.proto)

CHECKPOINT := model/pretrained/en-fr
# What is served, in int8; it lies in the repository.
BUNDLE := model/pretrained/en-fr-int8
# The same model in float32, for the tests.
FLOAT32 := build/bundle/en-fr
# The sentences that an export is proven on.
TEXTS := benchmarks/data/tatoeba.tsv
LINKS := build/imports/dragoman
PEERS := build/peers/.installed
# What makes and audits the image's locks, in an environment of its own.
LOCKER := build/lock/.installed
COMPILE = build/lock/bin/uv pip compile --quiet --generate-hashes --only-binary :all: --no-annotate \
    --cache-dir build/lock/cache --custom-compile-command 'make lock' --python-version 3.11 \
    --python-platform x86_64-manylinux_2_28 $(LOCK_OPTIONS)

.PHONY: help install serve test check lint types generated image image-gpu lock audit deploy-test bundle bench bench-served families wheel wheel-test clean

help: ## List these targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 14

install: $(INSTALLED) $(LINKS) ## Install everything into .venv, from the source tree, and generate the gRPC code.

# Editors and type checkers, which read imports as text, find the folders here under their import names.
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

serve: $(SERVING) ## Serve the shipped model on 127.0.0.1:50051, with metrics on port 9464; needs no PyTorch.
	$(BIN)/dragoman serve $(BUNDLE)

$(FLOAT32)/manifest.json: $(wildcard $(CHECKPOINT)/* bundle/*.py export/*.py) | $(INSTALLED)
	$(BIN)/dragoman export --force --texts $(TEXTS) $(CHECKPOINT) $(FLOAT32)

# Two processes, each of which exports for itself what its tests share: more would do that again and again.
test: $(INSTALLED) $(FLOAT32)/manifest.json ## Run all tests.
	$(BIN)/pytest --numprocesses 2 --dist loadfile

check: lint types ## Run the linters and the type checker.

lint: $(INSTALLED) ## Check style, the protos, and the imports that the architecture allows.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/buf lint protos
	$(BIN)/lint-imports

types: $(INSTALLED) $(LINKS) ## Check types.
	$(BIN)/mypy

generated: $(INSTALLED) ## Regenerate dashboards, rules and reference pages from the code.
	$(BIN)/python -m deploy.generate deploy
	$(BIN)/python -m dragoman.service.cli.documentation docs

image: ## Build the image of the server, dragoman:cpu.
	docker build $(BUILD_OPTIONS) $(BASE_IMAGE:%=--build-arg BASE_IMAGE=%) --target runtime --tag dragoman:cpu .

image-gpu: ## Build the same for a GPU, dragoman:gpu: several gigabytes.
	docker build $(BUILD_OPTIONS) $(BASE_IMAGE:%=--build-arg BASE_IMAGE=%) --target runtime --tag dragoman:gpu \
	    --build-arg VARIANT=gpu .

lock: $(LOCKER) ## Write which wheels, by their hashes, the images are made of (deploy/image/*.lock).
	$(COMPILE) --extra cpu --extra traces --output-file deploy/image/cpu.lock pyproject.toml
	$(COMPILE) --extra gpu --extra traces --output-file deploy/image/gpu.lock pyproject.toml
	build/lock/bin/python -c 'import tomllib; \
	    print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' > build/lock/build.in
	$(COMPILE) --output-file deploy/image/build.lock build/lock/build.in

# Strict: whatever cannot be looked up would otherwise pass as harmless.
audit: $(LOCKER) ## Look up known vulnerabilities of all that the images are made of; needs PyPI's service for that.
	@for lock in deploy/image/*.lock; do \
	    echo "$$lock" && \
	    build/lock/bin/pip-audit --strict --disable-pip --require-hashes --requirement "$$lock" || \
	    { echo "audit: $$lock has known vulnerabilities, or they could not be looked up: see above" >&2; exit 1; }; \
	done

$(LOCKER): Makefile
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet uv==0.13.8 pip-audit==2.10.1
	touch $@

deploy-test: $(INSTALLED) ## Try image, docker-compose.yml, dashboards and alerts on a Docker engine: about 5 minutes.
	$(BIN)/python -m tests.deploy.trial

bench: $(PEERS) ## Measure beside CTranslate2, transformers and optimum-onnx: about 30 minutes on two quiet cores.
	build/peers/bin/python -m benchmarks.speed.steps
	build/peers/bin/python -m benchmarks.speed.sentences
	build/peers/bin/python -m benchmarks.results_file

bench-served: $(PEERS) ## Measure over gRPC beside CTranslate2 offline: about 5 minutes on two quiet cores.
	build/peers/bin/python -m benchmarks.speed.served $(BUNDLE)
	build/peers/bin/python -m benchmarks.results_file

families: $(INSTALLED) ## Hold exports of tiny imported checkpoints against transformers: about 15 minutes on two quiet cores.
	$(BIN)/python -m benchmarks.quality.families

# The peers bring a transformers that nothing else needs: they have an environment of their own.
$(PEERS): pyproject.toml | $(INSTALLED)
	$(PYTHON) -m venv build/peers
	build/peers/bin/pip install --quiet $(TORCH_INDEX:%=--extra-index-url %) --editable '.[cpu,export]' \
	    ctranslate2==4.8.5 transformers==4.57.6 optimum-onnx==0.1.0
	touch $@

# Not straight into its place: there the export would need --force, which accepts any loss of precision.
bundle: $(INSTALLED) ## Export the bundle that is served anew from the shipped checkpoint.
	rm -rf build/bundle/$(notdir $(BUNDLE))
	$(BIN)/dragoman export --precision int8 --texts $(TEXTS) $(CHECKPOINT) build/bundle/$(notdir $(BUNDLE))
	rm -rf $(BUNDLE)
	mv build/bundle/$(notdir $(BUNDLE)) $(BUNDLE)

wheel: $(INSTALLED) ## Build the source archive, and out of it the wheel, into dist.
	rm -rf dist
	$(BIN)/python -m build

wheel-test: wheel ## Install the wheel alone, without torch, and translate through it.
	PYTHON=$(PYTHON) .ci/wheel-test dist/*.whl $(BUNDLE)

clean: ## Remove everything that the other targets made.
	rm -rf $(VENV) build dist *.egg-info protos/dragoman/v1/*_pb2*.py* .*_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -r {} +
