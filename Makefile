# Every target sets up what it needs, once. `make` alone lists them.

PYTHON ?= python3
VENV := .venv/bin
SET_UP := $(PYTHON) scripts/bootstrap.py
PYTEST := $(VENV)/python -m pytest
# Where tests are that may behave differently on another database: those that use one.
ON_DATABASE := billing chatsite conversations inference tests/walk
# Billing and settlement: the fast tests take every branch of these.
WHOLE := billing/*,inference/runs.py,inference/charging.py
# The page's unit tests run on the Node.js that comes inside playwright's wheel.
NODE = $(VENV)/python -c "import playwright, pathlib; print(pathlib.Path(playwright.__file__).parent / 'driver' / 'node')"
TEMPLATES := $(wildcard templates chatsite/templates)

.PHONY: help run setup dev test check format model memory longchat chaos fuzz bench simulate bench-admin lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'
	@echo "Variables (PORT, ENGINE, DATABASE_URL, …): docs/operations.md"

run:  ## set everything up and serve http://127.0.0.1:8000 until Ctrl-C
	@exec $(SET_UP) run

setup:  ## only set up what `make run` needs
	@$(SET_UP) setup

dev:  ## set up what tests and checks need
	@$(SET_UP) dev

test: dev  ## run every check and every test, on SQLite and Postgres, with the real engine, a browser and some chaos
	@$(MAKE) --no-print-directory check
	$(PYTEST) -n 2 --cov --cov-report=
	$(VENV)/coverage report --format=total | sed 's/.*/branch coverage of the fast tests: & %/'
	$(VENV)/coverage report --include="$(WHOLE)" --fail-under=100
	$(VENV)/python -m tests.services $(PYTEST) -n 2 --database-only $(ON_DATABASE)
	$(PYTEST) -m "engine or browser or chaos"

check: dev  ## lint, formatting, types, import contracts, migrations, templates, the page's unit tests
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/lint-imports
	$(VENV)/mypy .
	$(VENV)/python manage.py makemigrations --check --dry-run --settings chatsite.settings.test
	$(VENV)/djlint --check --lint --quiet $(TEMPLATES)
	"$$($(NODE))" --test static/

format:  ## let the formatters have their way
	$(VENV)/ruff check --fix .
	$(VENV)/ruff format .
	$(VENV)/djlint --reformat --quiet $(TEMPLATES)

model:  ## search the turn protocol's model for a counterexample (docs/protocol), on two cores
	$(PYTHON) -m docs.protocol

bench: dev  ## measure: added latency, tokens per second, many followers
	$(VENV)/python -m benchmarks.run

memory:  ## fetch the sentence encoder of long memory (84 MB), and hold it to the figures of transformers
	MEMORY=1 $(SET_UP) dev
	$(PYTEST) -m encoder conversations

longchat: dev  ## one chat of 200 turns with the real engine: what is cached, what sending costs, what is remembered (TURNS)
	$(VENV)/python -m benchmarks.run longchat

chaos: dev  ## kill and freeze processes under load, then check what must hold (TURNS, KILLS, SEED, DB, ENGINE)
	$(VENV)/python -m tests.chaos $(if $(TURNS),--turns $(TURNS)) $(if $(KILLS),--kills $(KILLS)) \
		$(if $(SEED),--seed $(SEED)) $(if $(DB),--db $(DB)) $(if $(ENGINE),--engine $(ENGINE))

fuzz: dev  ## hold the served API against its schema with made-up requests (CASES, SEED; WALK=full: all bad inputs, too)
	$(VENV)/python -m tests.fuzz $(if $(CASES),--cases $(CASES)) $(if $(SEED),--seed $(SEED))
	$(if $(WALK),WALK=$(WALK) $(PYTEST) -n 2 tests/walk)

simulate: dev  ## hold the scheduler against its goals: its real scripts in virtual time (OPTIONS="--quick"; plots in var/simulation)
	$(VENV)/python manage.py simulate $(OPTIONS)

bench-admin: dev  ## measure: the admin's pages over a million rows, on SQLite and Postgres (about 8 GB of disk)
	$(VENV)/python -m benchmarks.admin

lock:  ## choose the newest allowed packages anew: requirements.txt and requirements/*.txt
	$(PYTHON) scripts/lock.py

clean:  ## remove what was installed or generated; keeps ./var (data, model)
	rm -rf .venv staticfiles .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
