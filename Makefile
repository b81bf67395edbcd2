# Everything is made inside the repository, in $(VENV), build and dist.

PYTHON ?= python3
VENV ?= .venv
# One more package index to find torch on, such as one with builds for the CPU; empty: pip's own index, a CUDA build.
TORCH_INDEX ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CHECKPOINT := model/pretrained/en-fr
BUNDLE := build/bundle/en-fr
# The sentences that the export is proven on.
TEXTS := benchmarks/data/tatoeba.tsv
MANIFEST := $(BUNDLE)/manifest.json
# What the benchmarks serve.
INT8 := build/bundle/en-fr-int8
PEERS := build/peers/.installed

.PHONY: help install serve test check lint types bench bench-served wheel wheel-test clean

help: ## List these targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 14

install: $(INSTALLED) ## Install everything into .venv, from the source tree, and generate the gRPC code.

$(INSTALLED): pyproject.toml setup.py $(wildcard protos/dragoman/v1/*.proto)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install $(TORCH_INDEX:%=--extra-index-url %) --editable '.[cpu,export,train,dev]'
	touch $@

$(MANIFEST): $(wildcard $(CHECKPOINT)/* export/*.py) | $(INSTALLED)
	$(BIN)/dragoman export --force --texts $(TEXTS) $(CHECKPOINT) $(BUNDLE)

serve: $(INSTALLED) $(MANIFEST) ## Serve the shipped model on 127.0.0.1:50051, with metrics on port 9464.
	$(BIN)/dragoman serve $(BUNDLE)

test: $(INSTALLED) $(MANIFEST) ## Run all tests.
	$(BIN)/pytest

check: lint types ## Run the linters and the type checker.

lint: $(INSTALLED) ## Check style, the protos, and the imports that the architecture allows.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/buf lint protos
	$(BIN)/lint-imports

types: $(INSTALLED) ## Check types.
	mkdir -p build/types/dragoman
	ln -sfn ../../../model ../../../export ../../../service ../../../protos/dragoman/v1 build/types/dragoman
	$(BIN)/mypy

bench: $(PEERS) ## Measure beside CTranslate2, transformers and optimum-onnx: about 30 minutes on two quiet cores.
	build/peers/bin/python -m benchmarks.steps
	build/peers/bin/python -m benchmarks.sentences
	build/peers/bin/python -m benchmarks.results

bench-served: $(PEERS) $(INT8)/manifest.json ## Measure over gRPC beside CTranslate2 offline: about 5 minutes on two quiet cores.
	build/peers/bin/python -m benchmarks.served $(INT8)
	build/peers/bin/python -m benchmarks.results

# The peers bring a transformers that nothing else needs: they have an environment of their own.
$(PEERS): pyproject.toml | $(INSTALLED)
	$(PYTHON) -m venv build/peers
	build/peers/bin/pip install --quiet $(TORCH_INDEX:%=--extra-index-url %) --editable '.[cpu,export]' \
	    ctranslate2==4.8.5 transformers==4.57.6 optimum-onnx==0.1.0
	touch $@

$(INT8)/manifest.json: $(wildcard $(CHECKPOINT)/* export/*.py) | $(INSTALLED)
	$(BIN)/dragoman export --force --precision int8 --texts $(TEXTS) $(CHECKPOINT) $(INT8)

wheel: $(INSTALLED) ## Build the source archive, and out of it the wheel, into dist.
	rm -rf dist
	$(BIN)/python -m build

wheel-test: wheel $(MANIFEST) ## Install the wheel alone, without torch, and translate through it.
	PYTHON=$(PYTHON) .ci/wheel-test dist/*.whl $(BUNDLE)

clean: ## Remove everything that the other targets made.
	rm -rf $(VENV) build dist *.egg-info protos/dragoman/v1/*_pb2*.py* .*_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -r {} +
