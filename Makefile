# Two commands do everything, install included: `make fuzz` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
FAST_SEEDS := seeds/postprocess.yaml seeds/transformer.yaml seeds/digits.yaml

.PHONY: install fuzz test lint clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch torchvision
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# The main job for two minutes, on the seeds that compile in seconds. Findings are no failure here: exit 1 means "found".
fuzz: $(INSTALLED)
	$(BIN)/xbfuzz run $(FAST_SEEDS) --budget 2m; code=$$?; test $$code -le 1

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# By file, because a file shares prepared workers; in the order of names, so that the longest starts early.
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

clean:
	rm -rf $(VENV) build *.egg-info
