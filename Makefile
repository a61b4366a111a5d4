# ds41: `make book` builds the book, `make test` checks everything. Each target sets up .venv by itself.

PYTHON ?= python3
# Where and how much the chapters compute: DEVICE=auto|cpu|cuda, SCALE=auto|small|full (auto: full on a GPU).
DEVICE ?= auto
SCALE ?= auto
# Options for pip, such as an index with CPU builds of torch.
PIP_FLAGS ?=
PORT ?= 8000
# `LANG=de` on the command line builds the German edition beside the English one. A shell's own LANG means its locale.
EDITIONS := $(if $(findstring command,$(origin LANG)),$(filter-out en,$(LANG)))
unexport LANG

VENV := .venv
RUN := $(VENV)/bin/python
BOOK_READY := $(VENV)/.ready-book
CHECKS_READY := $(VENV)/.ready-checks

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help book notebooks html test lint hygiene workflows unit kernels kernels-colab colab-check pages api pdf \
  lighthouse bench bench-peers serve clean catalogues handout workshop workshop-try

help:
	@echo "make book       execute the chapters and build the book  (LANG=de: in German, too)"
	@echo "make serve      show the built book at http://localhost:$(PORT)"
	@echo "make test       every check: what a change has to pass"
	@echo "make notebooks  execute the chapters      (DEVICE=auto|cpu|cuda SCALE=auto|small|full)"
	@echo "make kernels    compile every kernel for every GPU generation and print what it costs"
	@echo "make kernels-colab  the kernel tests on Triton 3.6, as Colab has it"
	@echo "make colab-check  every chapter on Colab's versions, first cell included (CHAPTERS=04-fp4; 5 GB once)"
	@echo "make pdf        the built book as one PDF, build/ds41.pdf"
	@echo "make lighthouse the built book measured as a phone sees it"
	@echo "make workshop   the kit for a workshop as one zip  (WHEELS=yes: with the wheels of all packages)"
	@echo "make workshop-try  that kit as a participant meets it, without a network  (WHEELS=yes: nothing but its wheels)"
	@echo "make handout    the ledger on one printed page, build/workshop/handout"
	@echo "make catalogues bring the German catalogues up to date with the English texts; say what went stale"
	@echo "make api        write the pages of the API reference anew"
	@echo "make bench      time the formats beside other libraries, a step at a million tokens, a session's turns, the endpoint"
	@echo "make bench-peers  ds41 beside transformers' DeepSeek-V4, which it installs"
	@echo "make clean      remove what was built; .venv stays"
	@echo "Parts of make test: lint hygiene workflows unit kernels notebooks html pages"

$(BOOK_READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	  f"the book needs Python 3.11 or newer, and $(PYTHON) is {v[0]}.{v[1]}: set PYTHON=...")'
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet $(PIP_FLAGS) -r requirements.txt
	$(RUN) -m pip install --quiet $(PIP_FLAGS) --no-deps -e .
	@touch $@

$(CHECKS_READY): ci/requirements.txt $(BOOK_READY)
	$(RUN) -m pip install --quiet $(PIP_FLAGS) -r ci/requirements.txt
	@touch $@

book: notebooks html

notebooks: $(BOOK_READY)
	$(RUN) ci/run_notebooks.py --device $(DEVICE) --scale $(SCALE)

html: $(BOOK_READY)
	$(RUN) ci/build_book.py $(foreach code,$(EDITIONS),--language $(code))

# The checks look at both editions.
test: EDITIONS := de
test: lint hygiene workflows unit kernels notebooks html pages
	@$(RUN) ci/verdict.py

lint: $(CHECKS_READY)
	$(RUN) -m ruff check

hygiene: $(CHECKS_READY)
	$(RUN) ci/notebooks.py check

workflows: $(CHECKS_READY)
	$(RUN) ci/lint_workflows.py

unit: $(CHECKS_READY)
	$(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

kernels: $(BOOK_READY)
	$(RUN) ci/compile_kernels.py

# The kernel tests on Colab's Triton and numpy, beside the pinned torch.
kernels-colab: $(CHECKS_READY)
	$(RUN) -m pip install --quiet $(PIP_FLAGS) --no-deps --upgrade --target build/colab-triton triton==3.6.0 numpy==2.1.3
	PYTHONPATH=build/colab-triton $(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/kernels

# Each chapter in a fresh environment like Colab's, which its first cell makes ready; CHAPTERS= all, and the trials.
colab-check: $(BOOK_READY)
	$(RUN) ci/colab_check.py --pip-flags="$(PIP_FLAGS)" $(CHAPTERS)

pages: $(CHECKS_READY)
	$(RUN) ci/check_book.py

# The book is built in both languages first, and every chapter executed.
workshop: EDITIONS := de
workshop: $(CHECKS_READY) book
	$(RUN) ci/workshop_bundle.py $(if $(filter yes,$(WHEELS)),--wheels) --pip-flags="$(PIP_FLAGS)"

workshop-try: $(CHECKS_READY)
	$(RUN) ci/workshop_try.py $(wildcard build/ds41-workshop-*.zip) $(if $(filter yes,$(WHEELS)),--wheels)

handout: $(CHECKS_READY)
	$(RUN) ci/workshop_handout.py

catalogues: $(BOOK_READY)
	$(RUN) ci/catalogues.py update
	$(RUN) ci/catalogues.py check
	$(RUN) ci/catalogues.py status

# The pages of the API reference, after a public name has come or gone.
api: $(BOOK_READY)
	$(RUN) ci/api_pages.py --write

pdf: $(CHECKS_READY)
	$(RUN) ci/print_book.py

lighthouse: $(CHECKS_READY)
	$(RUN) ci/lighthouse.py

bench: $(CHECKS_READY)
	$(RUN) benchmarks/formats.py
	$(RUN) benchmarks/million.py
	$(RUN) benchmarks/sessions.py
	$(RUN) benchmarks/simulation.py
	$(RUN) benchmarks/serve_load.py
	$(RUN) benchmarks/kernels.py

bench-peers: $(CHECKS_READY)
	$(RUN) -m pip install --quiet $(PIP_FLAGS) transformers==5.24.0
	$(RUN) benchmarks/peers.py

serve: $(BOOK_READY)
	@test -f build/html/index.html || { echo "no book yet: run make book" >&2; exit 1; }
	$(RUN) -m http.server --bind 127.0.0.1 --directory build/html $(PORT)

clean:
	rm -rf build dist .pytest_cache .hypothesis .ruff_cache book/.ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
