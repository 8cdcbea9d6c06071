"""Serving on a device that does not exist: shapes and devices are real, values are not. Prints one JSON line.

Tensors are torch's fake ones on a device "pretended": an operator over tensors of two devices raises, and so does
whatever needs a value on the host. Only `Staging.fetch` may bring one, and gives zeros. Torch learns of the device
once a process, so this runs in a process of its own.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from fake_engines import make_llm
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from framework.engine import pool, staging
from framework.engine.staging import Staging
from framework.model.decoder import Decoder
from framework.model.loading import TINY_CONFIG, LoadedModel
from framework.model.tokenizer import ByteTokenizer
from framework.sampling import Sampling
from framework_testing.attention_runs import ReplayRecorder
from framework_torch.backend import TorchBackend

DEVICE = "pretended:0"
GREEDY = Sampling(max_tokens=6, ignore_eos=True)
DRAWN = [
    GREEDY,
    Sampling(max_tokens=5, ignore_eos=True, temperature=1.0, top_k=5, top_p=0.9),
    Sampling(max_tokens=5, ignore_eos=True, temperature=1.0, n=2),
]
SEARCHED = [*DRAWN, Sampling(max_tokens=6, beam_width=2), Sampling(max_tokens=6, logprobs=3)]
WINDOWS = {"sliding_window": 9, "sliding_layers": (True, False)}
SCENARIOS: dict[str, dict[str, Any]] = {
    "greedy": {"samplings": [GREEDY] * 4},
    "drawn without forks": {"samplings": [replace(DRAWN[1], max_tokens=6)] * 2},
    "searched and preempted": {"samplings": SEARCHED, "preempt_every": 5},
    "windows and sinks of int8": {
        "samplings": DRAWN, "model": {**WINDOWS, "sinks": True, "soft_cap": 20.0}, "kv_dtype": "int8",
    },
    "float8_e4m3fn in HND": {"samplings": DRAWN, "kv_dtype": "float8_e4m3fn", "layout": "HND"},
    "recorded steps": {"samplings": DRAWN, "recorded": True},
}  # fmt: skip


class Pretended(TorchBackend):
    """The torch backend, on a device that it does not know."""

    capabilities = replace(
        TorchBackend.capabilities, devices=TorchBackend.capabilities.devices | {"pretended"}, graph_safe=True
    )


class OneDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses operators over tensors of both devices, indices included, and copies to the host.

    Attributes:
        calls, uploads: operators on the device and copies to it so far.
    """

    calls = uploads = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = str(func), kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        for tensor in tensors:
            if getattr(tensor, "constant", None) is not None:  # else the operator would be computed on the value
                tensor.constant = None  # type: ignore[attr-defined]
        kinds = {tensor.device.type for tensor in tensors if tensor.dim() or tensor.device.type != "cpu"}
        self.calls += "pretended" in kinds
        copies = name in ("aten.copy_.default", "aten._to_copy.default")
        if len(kinds) > 1 and not copies:
            raise AssertionError(f"{name} over tensors of {sorted(kinds)}")
        found = func(*args, **kwargs)
        outputs = [leaf for leaf in tree_leaves(found) if isinstance(leaf, torch.Tensor)]
        if "pretended" in kinds and any(output.device.type == "cpu" for output in outputs):
            raise AssertionError(f"{name} waits for the device")
        self.uploads += copies and len({tensor.device.type for tensor in (*tensors, *outputs)}) > 1
        return found


def _allocate(self: Any, capacity: int) -> None:
    """Staging._allocate with a host buffer that holds values."""
    self._device = torch.zeros(capacity, dtype=torch.uint8, device=self.device)
    memory = np.zeros(capacity, dtype=np.uint8)
    self._buffers, self._turn = [staging._Buffer(torch.from_numpy(memory), memory, None)], 0


def _fetch(self: Any, tensor: Any) -> Any:
    """Staging.fetch: zeros, from the device alone."""
    self.num_fetches += 1
    assert tensor.device.type == "pretended", f"{tensor.device} was fetched"
    return np.zeros(tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))


def serve(samplings: list[Sampling], model: Any = None, **options: Any) -> dict[str, Any]:
    """What became of the requests, and how often the host waited."""
    config = replace(TINY_CONFIG, **(model or {}))
    recorded = options.pop("recorded", False)
    cache = {"num_blocks": 80, "block_size": 4}
    engine = {"max_batch_requests": 8, "max_batch_tokens": 32, "max_model_len": 128, "prepack": False}
    loaded = LoadedModel(Decoder(config, device=DEVICE), ByteTokenizer(config.vocab_size, ()), config, "tiny")
    parts = {"backend": Pretended(), "device": DEVICE, "cuda_graphs": False}
    llm = make_llm(loaded, **parts, **cache, **engine, **options)
    with OneDevice() as watch:
        if recorded:
            llm.executor.capture(ReplayRecorder(check=False), (1, 4, 8))  # type: ignore[attr-defined]
        requests = llm.generate([[1 + i, *range(20, 30 + 9 * i)] for i in range(len(samplings))], samplings)
    executor: Any = llm.executor
    return {
        "status": sorted({request.status.value for request in requests}),
        "reasons": sorted({request.reason for request in requests}),
        "steps": executor.num_eager_steps + (executor.graphs.num_replays if executor.graphs else 0),
        "replays": executor.graphs.num_replays if executor.graphs else 0,
        "waits": executor._drawing.num_fetches + executor._inputs.num_fetches,
        "calls": watch.calls,
        "uploads": watch.uploads,
    }


def main() -> None:
    """Every scenario, one after another."""
    backend_registration._setup_privateuseone_for_python_backend("pretended")
    pool.free_bytes = lambda device: 2**34  # type: ignore[assignment]
    Staging._allocate, Staging.fetch = _allocate, _fetch  # type: ignore[method-assign]
    found = {}
    for name, scenario in SCENARIOS.items():
        with FakeTensorMode(allow_non_fake_inputs=True):
            found[name] = serve(**scenario)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
