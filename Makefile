# `make` prints the targets. Each one first sets up what it needs in .venv.

VENV := .venv
BUDGET ?= quick
UNITS ?=
DEVICE ?= auto
LAB_ARGS ?=
CHIPS ?= T4 8GB H100 5090
ARGS ?=

# An author may build the notebooks with any Python and no torch: `make notebooks PYTHON=python3.13`.
ifdef PYTHON
AUTHORING := .venv-authoring-$(shell $(PYTHON) -c "import sys; print('%d.%d' % sys.version_info[:2])")
else
AUTHORING := $(VENV)
endif

# Threads that wait spin for a moment only: see helpers/__init__.py.
export GOMP_SPINCOUNT ?= 10000

READY := $(VENV)/.installed
RUN := $(VENV)/bin/python -m

.PHONY: help
help:
	@echo "make lab        open the course in JupyterLab, on your own copy in work/   LAB_ARGS=\"--no-browser --port 8899\""
	@echo "make score      grade your own work/ and say what is missing               UNITS=\"01 02\""
	@echo "make doctor     one page about this machine, with what to do where something is wrong"
	@echo "make notebooks  build the notebooks from solutions/*/*.py                  PYTHON=python3.13"
	@echo "make course     run every solution from top to bottom                      BUDGET=quick|full DEVICE=cpu UNITS=\"01 02\""
	@echo "make grade      grade a folder of submissions into a CSV                   ARGS=\"SUBMISSIONS --csv grades.csv\""
	@echo "make mark       mark what a person has to, in nbgrader's formgrader, after \`make grade\`"
	@echo "make exercises  build docs/exercises.md: all exercises and what goes wrong"
	@echo "make variant    the course with other numbers, for a class or each learner SEED=2027 ARGS=\"--learners roster.txt\""
	@echo "make grade-proof  prove grading on a made class, an hour           ARGS=\"class --units 00 02\""
	@echo "make test       prove all of it: lint, tests, notebooks, course, grading   DEVICE=cpu"
	@echo "make test-all   the same, the site in a browser, and a class on a hub"
	@echo "make site       the course as static pages in build/site/"
	@echo "make wheels     ask the package index for the pins' wheels, for Macs and for Linux on aarch64"
	@echo "make bench      time this device against the course's predictions          ARGS=\"…\""
	@echo "make gpu-check  check the CUDA kernels on a real GPU                       ARGS=\"…\""
	@echo "make rehearsal  run units on pretend GPUs, all layers of them              UNITS=\"02\" CHIPS=\"T4 H100\""
	@echo "make record     record this device's measurements for the course           ARGS=\"…\""
	@echo "make clean      remove build/ and .venv*/, never work/ or variants/"

$(VENV)/.installed: pyproject.toml constraints.txt
	@tools/setup.sh $(VENV) "$(PYTHON)" -- -e ".[home,test]"
	@echo "Compiling the CPU kernels, once …"
	@$(VENV)/bin/python -c "from helpers.kernels import cpu; cpu.warm_up()"
	@$(VENV)/bin/python -m helpers.clock.small_batch
	@touch $@

# What few people need comes on top of it when they ask: "site" and "test-all" are extras of pyproject.toml.
$(VENV)/.installed-%: $(VENV)/.installed
	@tools/setup.sh $(VENV) "$(PYTHON)" -- -e ".[test,$*]"
	@touch $@

.venv-authoring-%/.installed: constraints.txt
	@tools/setup.sh $(@D) "$(PYTHON)" -- jupytext nbgrader setuptools
	@touch $@

.PHONY: setup lab score doctor notebooks course exercises grade mark variant grade-proof test test-all site wheels bench gpu-check rehearsal record clean
setup: $(READY)

lab: $(READY)
	@$(RUN) tools.lab $(LAB_ARGS)

score: $(READY)
	@$(RUN) tools.score $(UNITS)

# Needs nothing: it is for when something is missing.
doctor:
	@python=$(VENV)/bin/python; $$python -V >/dev/null 2>&1 || python=python3; $$python -m tools.doctor

notebooks: $(AUTHORING)/.installed
	@$(AUTHORING)/bin/python -m tools.build $(UNITS)

course: $(READY)
	@$(RUN) tools.course --budget $(BUDGET) --device $(DEVICE) $(UNITS)

exercises: $(READY)
	@$(RUN) tools.exercises

grade: $(READY)
	@$(RUN) tools.autograde $(ARGS)

mark: $(READY)
	@test -d build/grading || { echo "nothing is graded yet: run make grade first"; exit 1; }
	@cd build/grading && ../../$(VENV)/bin/jupyter lab --LabApp.default_url=/formgrader

variant: $(READY)
	@$(RUN) tools.variant $(SEED) $(if $(UNITS),--units $(UNITS)) $(ARGS)

grade-proof: $(READY)
	@$(RUN) tools.grade_proof $(ARGS)

test: $(READY)
	@$(RUN) tools.proof --device $(DEVICE)

test-all: $(READY) $(VENV)/.installed-test-all
	@$(RUN) tools.proof --device $(DEVICE) --all

site: $(READY) $(VENV)/.installed-site
	@$(RUN) tools.site

wheels: $(READY)
	@$(RUN) tools.wheels all

bench: $(READY)
	@$(RUN) tools.bench $(ARGS)

gpu-check: $(READY)
	@$(RUN) tools.gpu_check $(ARGS)

rehearsal: $(READY)
	@for chip in $(CHIPS); do $(RUN) tests.rehearsal.unit $$chip --layers 30 $(UNITS) || exit 1; done

record: $(READY)
	@$(RUN) tools.record $(ARGS)

clean:
	rm -rf build .venv .venv-authoring-*
