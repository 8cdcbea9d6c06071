# Short names for the commands of README.md and CONTRIBUTING.md. The virtual environment must be active.
.PHONY: setup test test-all lint format docs bench bench-save bench-compare gpu engines engines-own ci clean

# The name of this machine's benchmark baseline.
BASELINE ?= $(shell hostname)

setup:
	python -m pip install --no-deps 'torch>=2.6,<2.14' --index-url https://download.pytorch.org/whl/cpu
	python -m pip install -e '.[test,lint]'

test:
	python -m pytest -n 3

test-all:
	python -m pytest -n 3 -m "slow or not slow"

lint:
	ruff format --check .
	ruff check .
	mypy
	lint-imports

format:
	ruff format .
	ruff check --fix .

bench:
	python -m pytest tests/bench --benchmark-only --benchmark-disable-gc

bench-save:
	python tests/bench/baseline.py save $(BASELINE)

bench-compare:
	python tests/bench/baseline.py compare $(BASELINE)

gpu:
	python experiments/gpu/run.py

# The real engines on a CPU: a virtual environment over this one with their packages alone, and the tests in it.
engines: .engines/ready
	CUDA_VISIBLE_DEVICES= VLLM_LOGGING_LEVEL=ERROR OMP_NUM_THREADS=1 KVLAB_ENGINES=1 \
		.engines/bin/python -m pytest -n 0 -W ignore tests/engines tests/unit/export/test_vllm_connector.py \
		tests/unit/export/test_real_engines.py

.engines/ready: tests/engines/requirements.txt
	python -m venv .engines
	python -c 'import site; print("\n".join(f"import site; site.addsitedir({p!r})" for p in site.getsitepackages()))' \
		> "$$(.engines/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
	.engines/bin/python -m pip install --no-deps -r tests/engines/requirements.txt
	touch $@

# vLLM's own tests of prefix caching, from its sdist, with every manager that may be led evicting by our lru. Those of
# hisparse need NIXL, models or a network and fail without us just the same.
engines-own: .engines/ready .engines/vllm-tests
	cd .engines/vllm-tests && CUDA_VISIBLE_DEVICES= HF_HUB_OFFLINE=1 VLLM_LOGGING_LEVEL=ERROR OMP_NUM_THREADS=1 \
		PYTHONPATH=$(CURDIR)/tests/engines ../bin/python -m pytest -q -n 0 -W ignore --noconftest --timeout 60 \
		-c /dev/null --rootdir . -p no:cacheprovider -p lru_in_every_manager tests/v1/core/test_prefix_caching.py

.engines/vllm-tests: .engines/ready
	.engines/bin/python -m pip install setuptools-rust setuptools-scm wheel 'setuptools>=77' cmake ninja packaging jinja2
	VLLM_VERSION_OVERRIDE=0.33.0 VLLM_TARGET_DEVICE=empty .engines/bin/python -m pip download \
		--no-deps --no-binary :all: --no-build-isolation -d .engines vllm==0.33.0
	mkdir -p $@
	tar xzf .engines/vllm-0.33.0.tar.gz -C $@ --strip-components=1 vllm-0.33.0/tests
	touch $@

ci:
	.ci/run

docs:
	NO_MKDOCS_2_WARNING=1 python -m mkdocs build --strict

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
