# make demo · make test · make test-all · make test-cluster · make wheel-check · make gpu · make lint · make lint-ci · make docs · make changelog · make bench · make bench-localise · make bench-shapes · make bench-paired · make ablation · make goldens · make measures · make bench-hang-shapes · make bench-trainers · make sweep · make fuzz — each creates .venv itself; nothing else to set up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where torch comes from; e.g. TORCH_INDEX=https://download.pytorch.org/whl/cpu for the small CPU build.
TORCH_INDEX ?=
PIP_TORCH := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX),)
STAMP := $(VENV)/.installed
HTA_STAMP := $(VENV)/.installed-hta
FUZZ_STAMP := $(VENV)/.installed-fuzz
DOCS_STAMP := $(VENV)/.installed-docs
CI_STAMP := $(VENV)/.installed-ci
CLUSTER_STAMP := $(VENV)/.installed-cluster

.PHONY: demo test test-1 test-2 test-3 test-4 test-hta test-all test-cluster wheel-check gpu lint lint-ci docs changelog fuzz bench bench-localise bench-shapes bench-paired ablation goldens measures bench-hang-shapes bench-trainers sweep bench-numerics clean

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Setting up $(VENV) (about a minute; torch's CPU build is a 190 MB download where it is not cached)" >&2
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_TORCH) -c constraints.txt -e '.[train,fast,report,prometheus,perfetto,dev]'
	@touch $@

$(HTA_STAMP): $(STAMP)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[hta]'
	@touch $@

$(FUZZ_STAMP): $(STAMP)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	@touch $@

$(DOCS_STAMP): $(STAMP)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

$(CI_STAMP): $(STAMP)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[ci]'
	@touch $@

$(CLUSTER_STAMP): $(STAMP)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[ray,s3,cluster]'
	@touch $@

demo: $(STAMP)
	@$(BIN)/reftrain demo --out demo_run
	@$(BIN)/tracekit slowrank demo_run

# At least one test of every behaviour; four parts of about one length at once, as tests wait for processes now and then.
PART_1 := tests/advice tests/contract tests/evidence tests/numerics tests/tables tests/what_if
PART_2 := tests/hang tests/slowrank
PART_3 := tests/cli tests/hostile tests/property tests/reftrain tests/simulate tests/trend
PYTEST := $(BIN)/python -m pytest -p no:cacheprovider
# Tests start hundreds of processes: where an image forbids to keep bytecode, each would compile the packages, 0.5 s.
test: $(STAMP)
	@$(BIN)/python -m compileall -q tracekit numerics reftrain cli
	@$(MAKE) --no-print-directory --keep-going --jobs=4 test-1 test-2 test-3 test-4

test-1: $(STAMP)
	@$(PYTEST) $(PART_1) $(PYTEST_MORE)

test-2: $(STAMP)
	@$(PYTEST) $(PART_2) $(PYTEST_MORE)

test-3: $(STAMP)
	@$(PYTEST) $(PART_3) $(PYTEST_MORE)

test-4: $(STAMP)
	@$(PYTEST) $(addprefix --ignore=,$(PART_1) $(PART_2) $(PART_3)) $(PYTEST_MORE)

# What HolisticTraceAnalysis finds on the same files; the only tests that need it.
test-hta: $(HTA_STAMP)
	@$(PYTEST) -m 'slow or not slow' tests/breakdown/test_hta.py tests/frames/test_hta.py

# Every test, those marked slow as well, and new random examples each time: what a release needs.
test-all: $(STAMP)
	@$(BIN)/python -m pytest -m 'slow or not slow' --hypothesis-profile search

# A Ray cluster of two workers, one of them killed, reads traces from a server that speaks S3; two minutes.
test-cluster: $(CLUSTER_STAMP)
	@$(PYTEST) -m 'slow or not slow' tests/ingest/test_ray_engine.py

# What only a GPU can show; on a machine without one, why each test is skipped.
gpu: $(STAMP)
	@$(BIN)/python -m pytest tests/gpu -rs

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/mypy cli
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/codespell -D - -D tests/house/words.txt *.md changelog.d docs launch sample_traces cli numerics reftrain studies tracekit tests

# What runs elsewhere: workflow and action by the rules of actionlint, the image by hadolint, scripts by shellcheck.
# Actions are named by version, not by commit: an example is read, and its reader pins as their rules demand.
ACTIONLINT := PATH=$(CURDIR)/$(BIN):$$PATH $(BIN)/jactionlint --no-online --strict-exit --ignore unpinned-uses
lint-ci: $(CI_STAMP)
	@$(ACTIONLINT) docs/workflows/*.yml action.yml
	@sed -n '/^name: traces/,/^```/{/^```/!p}' docs/automation.md | $(ACTIONLINT) --stdin-filename docs/automation.md -
	@$(BIN)/hadolint launch/Containerfile
	@$(BIN)/shellcheck .ci/run launch/*.sh launch/*.sbatch sample_traces/*.sh

# What changed since the last release, from changelog.d; VERSION=0.2.0 moves it into CHANGELOG.md.
changelog: $(STAMP)
	@$(BIN)/towncrier build $(if $(VERSION),--yes --version $(VERSION),--draft --version unreleased)

# docs/ as a site in docs_site/, which asks nothing of a network and can be searched as a file; a link that leads nowhere or
# an option untold fails.
docs: $(DOCS_STAMP)
	@$(PYTEST) -m 'slow or not slow' tests/cli/test_documented.py tests/docs/test_notebooks.py tests/docs/test_site.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict
	@echo docs_site/index.html

# The wheel with extras in fresh environments of Python 3.11 and 3.13, lowest and latest versions, pandas 2 and 3; 15 minutes.
wheel-check: $(CI_STAMP)
	@$(BIN)/python -m tests.wheel

# Every pipeline schedule at p = 2, 3, 4 and m = 1 to 3p against one process; a few minutes.
sweep: $(STAMP)
	@$(BIN)/python -m tests.schedule.execution

# Damaged files through every reader, counted by how the command ends; FUZZ="--inputs 200000 --seed 7" for more.
# Then bytes that reach new lines of a reader, found by atheris; GUIDED="--seconds 600 --seed 7" for more.
FUZZ ?= --inputs 20000 --seed 1
GUIDED ?= --seconds 60
fuzz: $(FUZZ_STAMP)
	@$(BIN)/python -m tests.fuzz $(FUZZ)
	@$(BIN)/python -m tests.fuzz.guided $(GUIDED)

bench: $(HTA_STAMP)
	@$(BIN)/python -m tests.bench

# The ranks that slowrank, the plain vote and HTA name on made-up jobs of every form; LOCALISE="--cases 60" for fewer.
LOCALISE ?= --cases 500 --seed 0
bench-localise: $(HTA_STAMP)
	@$(BIN)/python -m tests.localise --json bench_localise.json $(LOCALISE)

# The ranks that slowrank and the plain vote name on jobs in the shapes of Megatron, torchtitan, DeepSpeed and DDP; SHAPES="--cases 30".
SHAPES ?= --jobs 2
bench-shapes: $(STAMP)
	@$(BIN)/python -m tests.shapes --json bench_shapes.json $(SHAPES)

# Which answers of slowrank differ between two states of the code, job by job: OLD and NEW are revisions, folders or files
# of answers; PAIRED="--suite localise --seeds 9999000:100" for jobs that no developer has looked at.
OLD ?= tests/paired/goldens.jsonl
NEW ?= .
PAIRED ?=
bench-paired: $(STAMP)
	@$(BIN)/python -m tests.paired --old $(OLD) --new $(NEW) $(PAIRED)

# What each rule of slowrank earns: answers that differ without it, job by job; then the thresholds that no answer depends
# on within a factor of two. ABLATION="--every 3" for fewer jobs, "--keep FOLDER" to read each job once for all calls.
ABLATION ?=
ablation: $(STAMP)
	@$(BIN)/python -m tests.paired.ablation $(ABLATION)
	@$(BIN)/python -m tests.paired.variation $(ABLATION)

# The answers to the jobs that were looked at, written again; a quarter of an hour.
goldens: $(STAMP)
	@$(BIN)/python -m tests.paired --save tests/paired/goldens.jsonl $(PAIRED)

# What the layout of tracekit is measured by, before the step model and now; tests/house keeps it from getting worse.
measures: $(STAMP)
	@$(BIN)/python -m tests.house.measures

# The ranks that hang names on dumps of hung jobs in the shapes of Megatron, torchtitan, HSDP and DDP; HANG_SHAPES="--cases 42".
HANG_SHAPES ?= --jobs 2
bench-hang-shapes: $(STAMP)
	@$(BIN)/python -m tests.hang_shapes --json bench_hang_shapes.json $(HANG_SHAPES)

# What `numerics compare` says of sixty trainers as users bring them, healthy and broken; TRAINERS="--only dropout".
TRAINERS ?= --jobs 2
bench-trainers: $(STAMP)
	@$(BIN)/python -m tests.trainers --json bench_trainers.json $(TRAINERS)

bench-numerics: $(STAMP)
	@$(BIN)/python -m tests.numerics.benchmark --out bench_numerics --docs docs/numerics_benchmark.md

clean:
	rm -rf $(VENV) demo_run docs_site bench_numerics bench_localise.json bench_shapes.json bench_hang_shapes.json bench_trainers.json fuzz_found build dist *.egg-info
