# Everything runs in .venv, which is made at first use and again when pyproject.toml changes.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

# Tests start hundreds of Python processes; without bytecode each of them compiles the code again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test test-long fuzz lint lock demo bench incidents faults examples screenshots clean

# File by file in four processes, because many tests wait for servers; then, with nothing beside
# them, the tests that measure times, unless ALONE is empty.
ALONE := yes
define run_tests
	@failed=0; \
	$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder \
		-m "not alone and $(1)" $(2) || failed=$$?; \
	$(if $(ALONE),$(BIN)/python -m pytest -m "alone and $(1)" \
		$$(grep -rl --include='test_*.py' mark.alone tests/integration) || failed=$$?;) \
	exit $$failed
endef

test: $(READY)
	$(call run_tests,not long)

test-long: $(READY)
	$(call run_tests,long,tests/integration)

# Runs the fuzz targets of tests/fuzz with a random seed: make fuzz FOR=60 SEED=1 TARGETS=promql
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --seconds $(or $(FOR),300) $(if $(SEED),--seed $(SEED)) $(TARGETS)

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

demo: $(READY)
	$(BIN)/tokenslo demo $(if $(FOR),--for $(FOR)) $(if $(ENGINE),--engine $(ENGINE))

# Measures the benches without a result of this commit in bench-results/, for half an hour, and writes
# docs/reference/benchmarks.md: make bench BENCHES=reader,proxy LONG=yes AGAIN=yes
bench: $(READY)
	$(BIN)/python -m bench.report $(if $(BENCHES),--benches $(BENCHES)) \
		$(if $(LONG),--long) $(if $(AGAIN),--again)

# Plays the incidents that have no result in incident-results/, for hours, and writes their scores.
incidents: $(READY)
	$(BIN)/python -m lab.incidents.scoreboard \
		$(if $(INCIDENTS),--incidents $(INCIDENTS)) $(if $(HELD_OUT),--held-out $(HELD_OUT)) \
		$(if $(TUNING),--tuning $(TUNING)) $(if $(JOBS),--jobs $(JOBS))

# Injects every fault of the matrix, for about 15 minutes, and writes docs/reference/faults.md.
faults: $(READY)
	$(BIN)/python -m lab.faults $(if $(FAULTS),--faults $(FAULTS))

examples: $(READY)
	set -e; for slo in examples/*/slo.*; do $(BIN)/tokenslo generate $$slo -o $$(dirname $$slo); done
	$(BIN)/tokenslo signals > docs/reference/signals.md
	$(BIN)/tokenslo schema > docs/reference/slo.schema.json
	$(BIN)/python -m tools.man_pages docs/man
	$(BIN)/python -m tools.docs

# The versions and hashes of the image's libraries.
LOCK := uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --custom-compile-command "make lock"

lock: $(READY)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/$(LOCK) --extra exporter --extra otlp pyproject.toml -o deploy/image/requirements.txt
	$(BIN)/python -c 'import tomllib; file = open("pyproject.toml", "rb"); \
		print(*tomllib.load(file)["build-system"]["requires"], sep="\n")' \
		| $(BIN)/$(LOCK) - -o deploy/image/build-requirements.txt

# Needs npm and Chromium (on Debian: apt-get install chromium).
screenshots: $(READY) tests/render/status_page/node_modules
	$(BIN)/python -m tests.render.dashboard_screenshots screenshots
	$(BIN)/python -m tests.render.status_page screenshots/status_page

tests/render/status_page/node_modules: tests/render/status_page/package-lock.json
	npm ci --prefix tests/render/status_page
	@touch $@

clean:
	rm -rf .venv .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache demo-out dist screenshots tests/render/grafana/node_modules tests/render/grafana/dist tests/render/status_page/node_modules
	find . -name __pycache__ -prune -exec rm -rf {} +

$(READY): pyproject.toml
	@echo "setting up .venv, once"
	@$(PYTHON) -m venv .venv || { echo "make: on Debian: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@
