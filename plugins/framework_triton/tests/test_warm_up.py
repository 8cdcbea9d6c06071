"""After the warm-up serving compiles no Triton kernel: launches are recorded with the keys they are compiled for."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

triton = pytest.importorskip("triton", reason="needs triton: its launcher says what a launch is compiled for")

from fake_engines import make_llm, warm  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler.compiler import make_backend  # noqa: E402
from triton.runtime.jit import create_function_from_signature  # noqa: E402

from framework.interfaces.backend import AttentionSpec  # noqa: E402
from framework.llm import LLM, EngineOptions  # noqa: E402
from framework.model.config import ModelConfig  # noqa: E402
from framework.model.loading import random_model  # noqa: E402
from framework.sampling import Sampling  # noqa: E402
from framework_testing.attention_runs import ReplayRecorder  # noqa: E402
from framework_triton.backend import TritonBackend  # noqa: E402
from framework_triton.configs import ARCHS  # noqa: E402
from framework_triton.kernels import compiled  # noqa: E402
from framework_triton.launch import Launcher  # noqa: E402

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter replaces what says what a launch is compiled for"
)

MODEL = ModelConfig(
    family="qwen3", vocab_size=263, hidden_size=64, num_layers=1, num_heads=8, num_kv_heads=2, head_dim=64,
    intermediate_size=64, qk_norm=True, max_position_embeddings=8192, dtype="bfloat16",
)  # fmt: skip
MODELS = {"plain": {}, "windows": {"sliding_window": 100}, "sinks": {"sinks": True, "num_kv_heads": 8}}


class Launches:
    """Stands for the compiler: notes what each launch would be compiled for on an H200, and computes nothing."""

    def __init__(self) -> None:
        self.keys: dict[tuple[str, str], int] = {}
        self._binders: dict[Callable[..., None], Any] = {}
        self._backend = make_backend(GPUTarget("cuda", 90, 32))

    def __call__(self, function: Callable[..., None]) -> Any:
        kernel = compiled(function)
        binder = self._binders.setdefault(
            function, create_function_from_signature(kernel.signature, kernel.params, self._backend)
        )

        return _Launch(lambda *args, **constants: self._note(function, binder, args, constants))

    def _note(self, function: Any, binder: Any, args: Any, constants: Any) -> None:
        bound, specialised, options = binder(*args, **constants, debug=False, instrumentation_mode="")
        key = function.__name__, f"{specialised} {sorted(options.items())}"
        self.keys[key] = self.keys.get(key, 0) + 1
        for name in ("OUT", "Q_OUT"):
            if bound.get(name) is not None:
                bound[name].zero_()


class _Launch:
    """`kernel[grid](*args, **constants)`."""

    def __init__(self, note: Callable[..., None]) -> None:
        self._note = note

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        assert all(0 < axis < 2**31 for axis in grid), f"launched over {grid}"
        return self._note


class OnAnH200(TritonBackend):
    """Launches what an H200 would be given, on tensors of the CPU, into `launches`."""

    launches: Launches

    def setup(self, spec: AttentionSpec, device: str) -> None:
        super().setup(spec, device)
        self._launcher = Launcher(spec, device, arch=ARCHS["sm_90"], num_sms=132, split_tokens=None, wrap=self.launches)

    def __deepcopy__(self, memo: Any) -> OnAnH200:
        other = type(self)()
        other.launches = self.launches
        return other


def make(model: str = "plain", *, warm_up: bool, graphs: bool = False, **options: Any) -> tuple[LLM, Launches]:
    backend = OnAnH200()
    backend.launches = Launches()
    engine = EngineOptions(
        max_batch_requests=options.pop("max_rows", 80), max_batch_tokens=640, prepack=False,
        chunk_size=options.pop("chunk_size", None),
    )  # fmt: skip
    llm = make_llm(
        random_model(replace(MODEL, **MODELS[model])), backend=backend, device="cpu", num_blocks=900, engine=engine,
        preempt_every=11,
        **{"block_size": 16, **options},
    )  # fmt: skip
    if graphs:
        llm.executor.capture(ReplayRecorder(check=False), (1, 8, 64))  # type: ignore[attr-defined]
    if warm_up:
        warm(llm)
    return llm, backend.launches


def serve(llm: LLM, seed: int) -> None:
    """Requests of every length and kind, few and many at once."""
    draw = np.random.default_rng(seed)
    kinds: list[dict[str, Any]] = [{}, {"temperature": 1.0}, {"n": 3, "temperature": 1.0}, {"beam_width": 2}]
    for count, longest in ((1, 3000), (3, 1400), (100, 60)):
        prompts = [draw.integers(0, 256, draw.integers(1, longest + 1)).tolist() for _ in range(count)]
        prompts += [prompt[: len(prompt) // 2 + 1] for prompt in prompts[:2]]  # a prefix that is cached
        samplings = [
            Sampling(max_tokens=int(draw.integers(1, 9)), ignore_eos=True, **kinds[at % 4])
            for at in range(len(prompts))
        ]
        for request in llm.generate(prompts, samplings):
            assert request.status.value == "finished", request.reason


OPTIONS: list[dict[str, Any]] = [
    {}, {"graphs": True}, {"model": "windows"}, {"model": "sinks"}, {"kv_dtype": "float8_e4m3fn"},
    {"kv_dtype": "int8"}, {"block_size": 64, "layout": "HND"}, {"chunk_size": 48, "max_rows": 300},
]  # fmt: skip


def described(options: dict[str, Any]) -> str:
    """A case in words, for its name."""
    return " ".join(f"{key} {value}" for key, value in options.items()) or "plain"


@pytest.mark.parametrize("options", OPTIONS, ids=described)
def test_nothing_is_compiled_after_the_warm_up(options: dict[str, Any]) -> None:
    llm, launches = make(warm_up=True, **options)
    before = set(launches.keys)
    serve(llm, seed=1)
    assert 8 <= len(before) <= 26, Counter(name for name, _ in before)
    later = set(launches.keys) - before
    assert not later, "\n".join(f"{name}: {key[:400]}" for name, key in later)


def test_without_a_warm_up_serving_compiles() -> None:
    llm, launches = make(warm_up=False)
    before = len(launches.keys)
    serve(llm, seed=1)
    assert len(launches.keys) >= before + 8
