# Every target sets up what it needs, once. `make` alone lists them.

PYTHON ?= python3
VENV := .venv/bin
SET_UP := $(PYTHON) scripts/bootstrap.py
PYTEST := $(VENV)/python -m pytest
# What may behave differently on another database: everything but the supervisor's own tests.
ON_DATABASE := billing chatsite conversations inference --ignore chatsite/tests/test_supervisor.py
# The page's unit tests run on the Node.js that comes inside playwright's wheel.
NODE = $(VENV)/python -c "import playwright, pathlib; print(pathlib.Path(playwright.__file__).parent / 'driver' / 'node')"
TEMPLATES := $(wildcard templates chatsite/templates)

.PHONY: help run setup dev test check format bench lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'
	@echo "Variables (PORT, ENGINE, DATABASE_URL, …): docs/operations.md"

run:  ## set everything up and serve http://127.0.0.1:8000 until Ctrl-C
	@exec $(SET_UP) run

setup:  ## only set up what `make run` needs
	@$(SET_UP) setup

dev:  ## set up what tests and checks need
	@$(SET_UP) dev

test: dev  ## run every check and every test, on SQLite and Postgres, with the real engine and a browser
	@$(MAKE) --no-print-directory check
	$(PYTEST) -n 2 --cov --cov-report=
	$(VENV)/coverage report --format=total | sed 's/.*/branch coverage of the fast tests: & %/'
	$(VENV)/python -m tests.services $(PYTEST) -n 2 $(ON_DATABASE)
	$(PYTEST) -m "engine or browser"

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

bench: dev  ## measure: added latency, tokens per second, many streams
	$(VENV)/python -m benchmarks.run

lock:  ## choose the newest allowed packages anew: requirements.txt and requirements/*.txt
	$(PYTHON) scripts/lock.py

clean:  ## remove what was installed or generated; keeps ./var (data, model)
	rm -rf .venv staticfiles .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
