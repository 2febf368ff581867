# Everything runs in .venv, which the first target that needs it creates. `make` alone lists the targets.

PYTHON ?= python3
# A machine whose torch differs (a CUDA or ROCm build) brings versions of its own: make test CONSTRAINTS=mine.txt
CONSTRAINTS ?= constraints.txt
PYTEST_ARGS ?=

# Relative, so that a checkout's path may contain spaces.
VENV := .venv
VENV_PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
# Quiet but for errors; the build tools come from the constraints too, not from an isolated environment.
# Modules are compiled when they are imported: to compile all of torch beforehand takes most of a minute.
PIP_INSTALL := $(VENV_PYTHON) -m pip install -qq --no-compile --disable-pip-version-check -c "$(CONSTRAINTS)"

# The OpenCL example is a package of its own, installed beside the project so that its tests run against it.
OPENCL_EXAMPLE := $(wildcard examples/opencl_backend/pyproject.toml)
OPENCL_STAMP := $(if $(OPENCL_EXAMPLE),$(VENV)/.installed-opencl-example)

# What compiles CUTLASS and CuTe DSL for GPUs that are not here: NVIDIA's compiler, headers and packages, 230 MB under
# licences of its own. Of what they depend on only that which compiles; CuTe DSL's default is a toolkit of CUDA 12.
NVIDIA_COMPILERS := nvidia-cuda-nvcc nvidia-cuda-nvrtc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime nvidia-cuda-cccl nvidia-cutlass \
	nvidia-cutlass-dsl nvidia-cutlass-dsl-libs-base nvidia-cutlass-dsl-libs-core nvidia-cutlass-dsl-libs-cu13 \
	cuda-bindings cuda-pathfinder protobuf

# The tests start hundreds of processes, each of which would compile torch's modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# What `make outside` makes and tests; its name is nobody's.
OUTSIDER := outsider_for_make
OLDEST_TRITON := $(VENV)/oldest-triton
# Each has a list of pinned versions with hashes, clients/NAME.txt, and tests in tests/clients/NAME/.
CLIENTS ?= vllm sglang diffusers
CLIENT_ENVIRONMENTS := .venv-clients
.PHONY: help setup clients nvidia-compilers test test-all emulated emulated-drawn oldest-triton outside demo site lint lint-mypy lint-pyright lint-style lint-imports format generate generate-check modes clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' Makefile | while IFS='|' read -r target text; do \
		printf '  make %-16s %s\n' "$$target" "$$text"; done
	@echo
	@echo "  PYTHON=$(PYTHON) (3.11 or later) is used to create $(VENV); PYTEST_ARGS is passed to pytest."

setup: $(STAMP) $(OPENCL_STAMP) ## create .venv and install portakernel with its development tools

nvidia-compilers: setup ## add what compiles CUTLASS and CuTe DSL to .venv; no GPU is needed
	@echo "Installing NVIDIA's compilers" && $(PIP_INSTALL) --no-deps $(NVIDIA_COMPILERS)

test: setup ## run the tests: make test PYTEST_ARGS="-k rms_norm"
	@$(VENV_PYTHON) -m pytest $(PYTEST_ARGS)

test-all: setup ## run every test, those too of which a run of all has a part
	@TESTS_TURN= $(VENV_PYTHON) -m pytest $(PYTEST_ARGS)

# What is emulated, and the part of it that two minutes have: requests drawn of all kernels, on one target.
EMULATED ?= gfx90a gfx942 gfx950 gfx1100 gfx1201
emulated: setup ## check the Triton and HIP kernels in the emulator of AMD's instructions: hours; build/emulated-*.json
	@mkdir -p build && status=0; for arch in $(EMULATED); do echo "amd:$$arch" && $(VENV_PYTHON) -m portakernel check \
		--emulate "amd:$$arch" --json > "build/emulated-$$arch.json" || status=1; done; exit $$status

emulated-drawn: setup ## a drawn part of `emulated`, in two minutes
	@$(VENV_PYTHON) -m portakernel check --emulate "amd:$(firstword $(EMULATED))" --drawn --budget 100s

# torch brings a newer one, which some kernels need less care for.
oldest-triton: setup ## run the plugins' tests with the oldest Triton that is supported
	@test -d "$(OLDEST_TRITON)" || { echo "Installing Triton 3.6" && $(VENV_PYTHON) -m pip install -qq --no-compile \
		--disable-pip-version-check --no-deps --target "$(OLDEST_TRITON)" 'triton==3.6.*'; }
	@PYTHONPATH="$(CURDIR)/$(OLDEST_TRITON)" $(VENV_PYTHON) -m pytest tests/plugins $(PYTEST_ARGS)

# One after another, each from its own list alone: what one pins another may not bear. Anew only where its list changed.
clients: ## build each client's environment and run its tests in it: make clients CLIENTS=vllm
	@for client in $(CLIENTS); do $(MAKE) --no-print-directory "$(CLIENT_ENVIRONMENTS)/$$client/.installed" && \
		echo "Testing in $$client" && "$(CLIENT_ENVIRONMENTS)/$$client/bin/python" -m pytest -n0 "tests/clients/$$client" $(PYTEST_ARGS) || exit 1; \
	done

$(CLIENT_ENVIRONMENTS)/%/.installed: clients/%.txt pyproject.toml
	@echo "Creating the environment of $*, some gigabytes for an engine" && "$(PYTHON)" -m venv --clear "$(CLIENT_ENVIRONMENTS)/$*"
	@"$(CLIENT_ENVIRONMENTS)/$*/bin/python" -m pip install -qq --no-compile --disable-pip-version-check --no-deps --require-hashes -r "$<"
	@"$(CLIENT_ENVIRONMENTS)/$*/bin/python" -m pip install -qq --no-compile --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# An environment of its own over .venv, so that neither this repository nor .venv is touched.
outside: setup ## make a plugin, a backend and an op in an empty folder elsewhere, install them and run their tests
	@folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && ours="$(CURDIR)/$(VENV_PYTHON)" && cd "$$folder" && \
	"$$ours" -m venv --without-pip environment && theirs="$$folder/environment/bin/python" && \
	"$$ours" -c 'import site; print("import site;", *(f"site.addsitedir({path!r});" for path in site.getsitepackages()))' \
		> "$$("$$theirs" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ours.pth" && \
	for kind in plugin backend op; do \
		"$$theirs" -m portakernel new $$kind $(OUTSIDER)_$$kind && cd $(OUTSIDER)_$$kind && \
		"$$ours" -m pip --python "$$theirs" install -qq --disable-pip-version-check --no-build-isolation --no-deps --no-index -e . && \
		"$$theirs" -m portakernel validate . --imports && "$$theirs" -m pytest -q && cd .. || exit 1; \
	done

demo: setup ## show what portakernel does on this machine
	@$(VENV)/bin/portakernel demo

# MkDocs' theme announces on every build how long it will be maintained.
site: setup ## build the documentation as a site into build/site, to be opened from there
	@cd website && NO_MKDOCS_2_WARNING=1 "../$(VENV_PYTHON)" -m mkdocs build --strict

# Two at a time: the type checkers take half a minute each.
lint: setup ## check style, types, the direction of imports, and that generated files are fresh
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint-mypy lint-pyright lint-style lint-imports generate-check

lint-mypy: setup
	@echo "mypy --strict" && $(VENV_PYTHON) -m mypy

lint-pyright: setup
	@echo "pyright" && PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(VENV_PYTHON) -m pyright

lint-style: setup
	@echo "ruff check" && $(VENV_PYTHON) -m ruff check .
	@echo "ruff format --check" && $(VENV_PYTHON) -m ruff format --check .

lint-imports: setup
	@echo "lint-imports" && $(VENV_PYTHON) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

format: setup ## put imports and layout in order
	@$(VENV_PYTHON) -m ruff check --fix .
	@$(VENV_PYTHON) -m ruff format .

generate: setup ## write the generated files: the JSON Schemas, ops.pyi and docs/matrix.md
	@$(VENV_PYTHON) -m portakernel_pages.generate

modes: setup ## run every op in every mode of PyTorch, and write docs/modes.md (a minute or two)
	@$(VENV_PYTHON) -m portakernel_pages.modes --write docs/modes.md

generate-check: setup ## fail when a generated file is stale
	@echo "generated files" && $(VENV_PYTHON) -m portakernel_pages.generate --check

clean: ## remove .venv, caches and build outputs
	rm -rf $(VENV) $(CLIENT_ENVIRONMENTS) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Triton compiles a launcher in C for each kernel it meets, hence the compiler.
$(STAMP): pyproject.toml $(CONSTRAINTS)
	@command -v "$(PYTHON)" >/dev/null || { \
		echo "There is no '$(PYTHON)' here: install Python 3.11 or later, or name one, as in: make test PYTHON=python3.12"; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "portakernel needs Python 3.11 or later, and '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1):" \
			"name another, as in: make test PYTHON=python3.12"; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "'$(PYTHON)' cannot create virtual environments: install its venv module (Debian and Ubuntu: apt install python3-venv)"; \
		exit 1; }
	@command -v cc >/dev/null || { \
		echo "There is no C compiler 'cc' here, and Triton needs one to launch kernels: install gcc or clang" \
			"(Debian and Ubuntu: apt install gcc libc6-dev)"; exit 1; }
	@echo '#include <stdio.h>' | cc -x c -fsyntax-only - 2>/dev/null || { \
		echo "The C compiler 'cc' finds no headers of the C library: install them (Debian and Ubuntu: apt install libc6-dev)"; exit 1; }
	@$(VENV_PYTHON) -m pip --version >/dev/null 2>&1 || { \
		echo "Creating $(VENV) with $$("$(PYTHON)" --version)"; "$(PYTHON)" -m venv --clear $(VENV); }
	@echo "Installing the build backend"
	@$(PIP_INSTALL) hatchling editables
	@echo "Installing portakernel, torch and the development tools (a minute or two the first time)"
	@$(PIP_INSTALL) --no-build-isolation -e '.[dev]' || { \
		echo "The installation failed. If torch and triton conflict above, pip found a CUDA build of torch, while $(CONSTRAINTS) pins what"; \
		echo "goes with the CPU build: set PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds (see pytorch.org), or pass CONSTRAINTS=FILE."; \
		exit 1; }
	@touch $@

$(VENV)/.installed-opencl-example: $(STAMP) $(OPENCL_EXAMPLE)
	@echo "Installing the OpenCL example and a CPU device for it"
	@$(PIP_INSTALL) 'pyopencl[pocl]'
	@$(PIP_INSTALL) --no-build-isolation --no-deps -e examples/opencl_backend
	@touch $@
