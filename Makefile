# Everything runs in .venv, made from the hash-checked development lock.
SHELL := /bin/sh
# More processes than a small machine has cores, as tests wait for much of their time; fewer for the slow ones, which hold a
# torch each. Neighbours stay in one process, which makes their fixtures once. Modules that pytest has rewritten are kept for
# the next run, whatever the shell says of byte code. A test that hangs ends after 10 minutes. Every skipped test is listed
# with its reason, every failed one by its name.
test test-all: WORKERS ?= 5
test-slow: WORKERS ?= 4
PYTEST = PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -n $(WORKERS) --dist worksteal --timeout=600 --durations=25 -rfEs

.PHONY: provision test test-slow test-all fuzz lint lint-style lint-types lint-playbooks generated containers docs bench locks clean

provision: .venv/.ready  ## build torch-smoke on this machine
	.venv/bin/envbuild provision --target local

test: .venv/.ready system-packages  ## the fast tests (some minutes on 2 cores)
	$(PYTEST) -m "not slow"

test-slow: .venv/.ready system-packages  ## real torch environments, real nodes, kill -9 everywhere
	$(PYTEST) -m slow

test-all: .venv/.ready system-packages  ## both in one run: they are collected once, and fast ones fill what slow ones wait
	$(PYTEST)

fuzz: .venv/.ready  ## hostile input for every parser, two minutes at low priority
	.venv/bin/python -m tests.fuzz

lint: lint-style lint-types lint-playbooks  ## with -j2 in half the time

lint-style: .venv/.ready
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/yamllint --strict .
	git ls-files 'containers/**Dockerfile*' | xargs -r .venv/bin/hadolint

lint-types: .venv/.ready
	.venv/bin/mypy

lint-playbooks: .venv/.ready
	ANSIBLE_HOME="$(CURDIR)/.cache/ansible" PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/ansible-lint --offline --strict playbooks

generated: .venv/.ready  ## schemas, error codes, shipped locks and containers/ agree with what makes them
	.venv/bin/python docs/make_schemas.py
	.venv/bin/python docs/make_reference.py
	.venv/bin/python docs/make_pictures.py
	.venv/bin/python docs/make_man.py
	git diff --exit-code -- docs/schemas docs/reference docs/pictures docs/man
	.venv/bin/envbuild lock check torch-smoke --offline
	.venv/bin/envbuild image dockerfile --check

containers: .venv/.ready  ## write containers/ anew from the locks
	.venv/bin/envbuild image dockerfile

docs: .venv/.ready  ## the site, in build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build

bench: .venv/.ready
	.venv/bin/python -m benchmarks

locks:  ## refresh the development lock, and constraints.txt for users
	.venv/bin/uv pip compile -q pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate -o lockfiles/development.txt
	.venv/bin/uv pip compile -q pyproject.toml -c lockfiles/development.txt --universal --python-version 3.11 \
	  --generate-hashes --no-header --no-annotate -o constraints.txt
	grep -A1000 '^uv==' lockfiles/development.txt | awk 'NR>1 && /^[a-z]/ {exit} {print}' > lockfiles/uv.txt

.PHONY: system-packages
system-packages:
	sh .ci/system-packages

.venv/.ready: pyproject.toml lockfiles/development.txt lockfiles/uv.txt .ci/setup
	sh .ci/setup

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis

.PHONY: build-old
PREFIX ?= $(CURDIR)/.cache/old
build-old: .venv/.ready  ## the old stacks' Python layers from their locks (1.6 GB; PY38 and PY39 name the interpreters)
	.venv/bin/envbuild provision megatron-alpa --target local --profile pypi-cu102 --prefix $(PREFIX) --python $(PY38)
	.venv/bin/envbuild provision opt-175b --target local --profile pypi-cu102 --prefix $(PREFIX) --python $(PY39)
