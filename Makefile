# Every command of the project; each makes .venv from the versions in pyproject.toml when needed.

PYTHON ?= python3
BIN := .venv/bin
RUN := $(BIN)/python -m

# Give a variable on the command line, as in `make sim METHOD=pb STALL=30`; empty means default.
NET :=
METHOD :=
SCHEDULE :=
PRESET :=
SEED :=
LR :=
LANES :=
STASH_BITS :=
PLAN :=
SAMPLES :=
EPOCHS :=
STALL :=
SIM :=
WAVES :=
ARITHMETIC :=
RESUME :=
DATA :=
TESTS :=
OUT :=

option = $(if $(strip $($(1))),--$(2) "$(strip $($(1)))")
PLAN_OPTIONS = $(call option,NET,net) $(call option,METHOD,method) \
	$(call option,SCHEDULE,schedule) $(call option,PRESET,preset) $(call option,SEED,seed) \
	$(call option,LR,lr) $(call option,LANES,lanes) $(call option,STASH_BITS,stash-bits) \
	$(call option,PLAN,plan)
LENGTH_OPTIONS = $(call option,SAMPLES,samples) $(call option,EPOCHS,epochs) \
	$(call option,DATA,data) $(call option,TESTS,tests)
OUTPUT_OPTION = $(call option,OUT,output)

N :=

.PHONY: sim sim-large fuzz plan verilog train calibrate bench test lint clean

sim: .venv/ready
	@$(RUN) cosim sim $(PLAN_OPTIONS) $(LENGTH_OPTIONS) $(call option,STALL,stall) \
		$(call option,SIM,sim) $(call option,WAVES,waves) $(OUTPUT_OPTION)

verilog: .venv/ready
	@$(RUN) cosim verilog $(PLAN_OPTIONS) $(OUTPUT_OPTION)

plan: .venv/ready
	@$(RUN) cosim plan $(PLAN_OPTIONS) $(OUTPUT_OPTION)

train: .venv/ready
	@$(RUN) model train $(PLAN_OPTIONS) $(LENGTH_OPTIONS) \
		$(call option,ARITHMETIC,arithmetic) $(call option,RESUME,resume) $(OUTPUT_OPTION)

calibrate: .venv/ready
	@$(RUN) model calibrate $(call option,NET,net) $(call option,DATA,data)

bench: .venv/ready
	@$(RUN) cosim bench $(PLAN_OPTIONS) $(OUTPUT_OPTION)

fuzz: .venv/ready
	@TIDEMILL_FUZZ=$(or $(strip $(N)),100) $(RUN) pytest -n 2 tests/cosim/test_random_networks.py

# Two updates of every tile of a full-width ResNet20 on 32x32 input; ten minutes.
sim-large: .venv/ready
	@$(RUN) cosim sim --net resnet20 --data noise --samples 2 --tests 0

test: lint
	@$(RUN) pytest -n 2 --dist worksteal

lint: .venv/ready
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy spec hw model cosim

.venv/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "error: python 3.11 or newer is needed: set PYTHON= to one" >&2; exit 2; }
	@$(PYTHON) -m venv .venv \
		|| { echo "error: python's venv module is missing: apt install python3-venv" >&2; exit 2; }
	@echo "installing the pinned versions of pyproject.toml into .venv"
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

clean:
	rm -rf build .venv *.egg-info
