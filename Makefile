# fedbench: `make` or `make help` lists the targets. A machine with Python 3.10-3.12 and make is enough.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: bench figures gpu-check gpu-floor leaderboard leaderboard-mini reproduce-all help install quickstart fast check-method test test-full mutants fuzz lint format docs tables report site wheel clean

# A python on the PATH may be another version's, or a shim that fails when run: try each.
USABLE := import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))
PYTHON ?= $(firstword $(foreach p,python3.12 python3.11 python3.10 python3 python,\
	$(shell $(p) -c "$(USABLE)" >/dev/null 2>&1 && echo $(p))))
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
OWN := VENV=% PYTHON=% BIN=% CPU=% PIP_OPTIONS=%
# Neighbours share what a file of tests makes once; the many processes that tests start find their code compiled.
CHECKS := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist worksteal

FIGURES := $(subst _,-,$(basename $(notdir $(sort $(wildcard conf/figure/*.yaml)))))
TABLES := $(subst _,-,$(basename $(notdir $(sort $(wildcard conf/table/*.yaml)))))

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z<>-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  make reproduce-TABLE    run a published table: one of"
	@echo "$(TABLES)" | fold -s -w 90 | sed 's/^/      /'
	@echo "      with, for example: make reproduce-fedcollab-t1 scale=quick substitute=fashion_mnist"
	@echo "  make figure-FIGURE      draw a published figure, running what it lacks: one of"
	@echo "$(FIGURES)" | fold -s -w 90 | sed 's/^/      /'

install: $(INSTALLED) ## make .venv with fedbench and its tools (CPU=1: without CUDA)

$(INSTALLED): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.10, 3.11 or 3.12 with venv found; install one (Debian: apt install" \
		"python3 python3-venv) or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c "$(USABLE)" || { echo "$(PYTHON) does not run as Python 3.10, 3.11 or 3.12 with venv; name another:" \
		"make $(MAKECMDGOALS) PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "installing into $(VENV) (PyTorch is large: this takes minutes, and 7 GB with CUDA; CPU=1 leaves CUDA out)"
	$(PYTHON) -m venv $(VENV)
# From that index alone, so that a release which it lacks is an error and not CUDA; the next line keeps what is there.
	$(if $(CPU),$(PIP) --index-url https://download.pytorch.org/whl/cpu 'torch>=2.5' torchvision)
	$(PIP) $(PIP_OPTIONS) --editable '.[dev]'
	@touch $@

quickstart: $(INSTALLED) ## train six methods on digits with three seeds and compare them (a minute)
	$(BIN)/python -m fedbench -m method=local,fedavg,fedprox,ditto,fedper,fedcollab seed=0,1,2

# Laws, rounds computed by hand, equations, and three checks on one method of each family.
FEW := stacked_equals_looped traffic_is_what_was_sent client_hooks_leave_their_arguments_alone
FAST := tests/core tests/metrics tests/engine/test_engine.py tests/data/test_partitions.py tests/config/test_stated.py \
	tests/test_house.py tests/scripts/test_mutants.py \
	$(addprefix tests/methods/test_,$(addsuffix .py,laws histories histories_of_servers rounds_by_hand gradient class_means \
	mixing fedsac fedrema pfedsim fedap sosicfl partial heads)) \
	$(foreach name,fedavg ditto ifca,$(foreach check,$(FEW),'tests/methods/test_conformance.py::test_method[$(name)-$(check)]'))

fast: lint ## the first to run: lint, laws, equations, a method of each family (40 seconds on two cores)
	$(CHECKS) -m "not slow" $(FAST)

check-method: $(INSTALLED) ## every promise of a method: NAME=ditto, or NAME=package.module:Class for your own
	@test -n "$(NAME)" || { echo "which method? make check-method NAME=ditto, or NAME=package.module:Class" >&2; exit 1; }
	$(BIN)/python -m fedbench check-method $(NAME)

# mypy takes one core for most of a minute, so it runs beside the tests.
test: $(INSTALLED) ## what CI runs on a pull request: lint, and the tests but for the slow ones (under four minutes on two quiet cores)
	@$(MAKE) --no-print-directory --jobs 2 lint quick-tests

.PHONY: quick-tests
quick-tests: $(INSTALLED)
	$(CHECKS) -m "not slow"

test-full: lint ## what CI runs on main and every night: test, and every case of exhaustive tests, signals, browsers, packaging
	$(CHECKS)

SEED ?= 1
mutants: $(INSTALLED) ## make each error of scripts/mutants.yaml, or COUNT=200 drawn with SEED=1: a test must notice (half an hour)
	OMP_NUM_THREADS=1 $(BIN)/python scripts/$(if $(COUNT),random_mutants.py --count $(COUNT) --seed $(SEED),mutants.py)

MINUTES ?= 60
fuzz: $(INSTALLED) ## try the properties with ever new examples for MINUTES=60; ends at the first that fails
	@ulimit -v 16777216; end=$$(($$(date +%s) + 60 * $(MINUTES))); seed=0; \
	while [ $$(date +%s) -lt $$end ]; do \
		OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -p no:cacheprovider --hypothesis-profile=many \
			--hypothesis-seed=$$seed tests/properties || exit 1; \
		seed=$$((seed + 1)); done; echo "seeds 0 to $$((seed - 1)): all held"

lint: $(INSTALLED) ## ruff, mypy, and imports that run down through the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: $(INSTALLED) ## let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED) ## rewrite the generated parts of README.md, docs/ and results/*.md
	$(BIN)/python scripts/update_docs.py

# Variables of the command line (scale=quick, seeds=3, rows=..., model=...) are passed on, but for this file's own.
reproduce-all: $(addprefix reproduce-,$(TABLES)) ## run every published table, one after the other: make reproduce-all -k scale=smoke

.PHONY: $(addprefix reproduce-,$(TABLES))
$(addprefix reproduce-,$(TABLES)): reproduce-%: $(INSTALLED)
	$(BIN)/python -m fedbench reproduce table=$(subst -,_,$*) $(filter-out $(OWN),$(MAKEOVERRIDES))

figures: $(INSTALLED) ## draw every figure of the papers, running what is missing: scale=quick takes half an hour
	$(BIN)/python -m fedbench figure all $(filter-out $(OWN),$(MAKEOVERRIDES))

.PHONY: $(addprefix figure-,$(FIGURES))
$(addprefix figure-,$(FIGURES)): figure-%: $(INSTALLED)
	$(BIN)/python -m fedbench figure $(subst -,_,$*) $(filter-out $(OWN),$(MAKEOVERRIDES))

leaderboard: $(INSTALLED) ## tune every method alike and judge it on three federations (some 20 hours, most final runs on a GPU; dry_run=true, board=v2)
	$(BIN)/python -m fedbench leaderboard board=v1 $(filter-out $(OWN),$(MAKEOVERRIDES))

leaderboard-mini: $(INSTALLED) ## the same machinery on digits (a quarter of an hour on two quiet cores)
	$(BIN)/python -m fedbench leaderboard board=mini $(filter-out $(OWN),$(MAKEOVERRIDES))

tables: $(INSTALLED) ## draw every table and figure under results/ again from its rows, without training
	$(BIN)/python -m fedbench redraw results
	$(BIN)/python scripts/by_client.py
	$(BIN)/python -m fedbench plot results/tables/fedcollab_t1 out=results/figures formats=svg

report: $(INSTALLED) ## write results/index.html: leaderboards, papers, and every filled table with its curves, on one page
	$(BIN)/python -m fedbench report results --methods ../build/site/methods

site: $(INSTALLED) ## build/site: docs, reference, a page for each method and all results, searchable without a network
	$(BIN)/python scripts/make_site.py

bench: $(INSTALLED) ## time the engines against a plain PyTorch loop, the server side and phases (half an hour)
	$(BIN)/python scripts/bench.py --out results/bench

gpu-check: $(INSTALLED) ## every method by every engine on this machine's GPU against the CPU, and the benchmark
	PYTHONPATH=. $(BIN)/python scripts/gpu.py
	$(BIN)/python scripts/bench.py --device cuda --out gpu-check

gpu-floor: $(INSTALLED) ## four minutes of a GPU: a step of each paper against the card's rates, and TF32
	for part in FLOOR KERNELS PROCESSES TF32; do \
		$(BIN)/python scripts/bench.py --device cuda --only $$part --minutes 1.5 --out gpu-check; \
	done

wheel: $(INSTALLED) ## build the wheel into dist/
	$(BIN)/python -m hatchling build -t wheel

clean: ## remove .venv, caches and built files; results in runs/ stay
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
