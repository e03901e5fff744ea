# `make help` lists what there is to do. Everything runs inside .venv, which `make setup` makes.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TORCH  := $(shell grep '^torch==' constraints.txt)

RUN_FLAGS ?= --policy expert --task metaworld/mt10 --episodes 10 --record first:3 --out runs/mt10-experts
SOAK_MINUTES ?= 10

# Many tests wait, for a deadline or for a worker to start: three at a time keep two cores busy.
# They start many interpreters, each of which would compile polyarm if there were no bytecode.
TEST_PROCESSES ?= 3

# An archive or a folder; without one, what is found on this machine or a download.
LIBERO_ASSETS ?= $(wildcard ../shared/libero/libero_assets.tar.xz)

.PHONY: help setup libero run test check format bench soak clean

help: ## list the commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(STAMP) libero ## make .venv with everything (again only when the dependencies change)

# torch goes in first and alone, so that the build for this machine is taken as it is
# and nothing that depends on it picks another. openpi's client and LeRobot, which the tests talk to,
# ask for versions that fit no other library here; what is used of them needs none of those.
$(STAMP): pyproject.toml constraints.txt $(wildcard scripts/*)
	scripts/setup_system.sh
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[metaworld,libero,torch,video,report,serve,dataset,train,ray,bench,dev]' -r scripts/lerobot_requirements.txt
	$(BIN)/pip install --quiet --no-deps -c constraints.txt openpi-client lerobot diffusers torchvision
	$(BIN)/python scripts/mend_packages.py
	touch $@

# Meta-World does without it. A second time it takes a moment and only verifies.
libero: $(STAMP) ## get LIBERO and its assets: downloaded, or LIBERO_ASSETS=folder or archive
	$(BIN)/polyarm setup libero $(if $(LIBERO_ASSETS),--assets '$(LIBERO_ASSETS)')

run: $(STAMP) ## evaluate Meta-World's scripted experts on mt10, with videos and a report
	$(BIN)/polyarm eval $(RUN_FLAGS)

test: setup ## run all tests
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile

check: setup ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## apply the formatter and the safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup ## run every benchmark against its peers
	$(BIN)/python benchmarks/transport.py --num-envs 8
	$(BIN)/python benchmarks/transport.py --num-envs 32
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/efficiency.py
	$(BIN)/python benchmarks/frames.py
	$(BIN)/python benchmarks/restart.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/libero.py
	$(BIN)/python benchmarks/rlbench_double.py
	$(BIN)/python benchmarks/dropin.py
	$(BIN)/python benchmarks/ppo.py
	$(BIN)/python benchmarks/ranks.py
	$(BIN)/python benchmarks/scaling.py --quick

soak: setup ## ten minutes of random kills; nothing may grow
	$(BIN)/python benchmarks/soak.py --minutes $(SOAK_MINUTES)

clean: ## remove .venv, caches and build results
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -exec rm -rf {} +
