"""Tokens a second of serve against `transformers.generate`, same weights and prompts.

pytest tests/bench/test_bench_serve.py --benchmark-only -s

Rounds are interleaved, so that a machine whose speed drifts slows all alike; the ratio is of one round's pair, and
`over_generate_cpu` that of their CPU seconds, which what else runs on the machine disturbs less. Both sides have run a
few tokens before. Engines are cold, but the decode of backend torch is compiled before the clock starts: once a
process, in `compile_s`. OMP_NUM_THREADS bounds the threads of both sides.
"""

import os
import time

import numpy as np
import pytest
import torch

from framework.engine.request import Status
from framework.llm import LLM, CacheOptions, EngineOptions
from framework.model.functions import linear
from framework.model.loading import load_model, random_model
from framework.model.shapes import SHAPES
from framework.sampling import Sampling
from framework_testing.checkpoints import make_checkpoint

ROUNDS = int(os.environ.get("KVLAB_BENCH_ROUNDS", "3"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A 100M-parameter Qwen3 with random weights, as transformers saves it."""
    import transformers

    shape = SHAPES["qwen3-100m"]
    folder = make_checkpoint(
        tmp_path_factory.mktemp("qwen3-100m"), "qwen3", tokenizer=False, vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size, num_hidden_layers=shape.num_layers, num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads, head_dim=shape.head_dim, intermediate_size=shape.intermediate_size,
        tie_word_embeddings=True, max_position_embeddings=4096, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return folder, model


def no_sharing(rng):
    """32 ragged prompts of 32 to 512 tokens, 128 new each."""
    lengths = np.linspace(32, 512, 32).astype(int)
    rng.shuffle(lengths)
    return [rng.integers(0, 32_000, int(n)).tolist() for n in lengths], 128


def shared_prefix(rng):
    """32 prompts: a common prefix of 1,024 tokens, 64 of their own, 64 new each."""
    prefix = rng.integers(0, 32_000, 1024).tolist()
    tails = [rng.integers(0, 32_000, 64).tolist() for _ in range(32)]
    return [prefix + tail for tail in tails], 64


def ours(folder, prompts, new):
    """Tokens, seconds, CPU seconds and metrics of one cold engine; building it is not timed."""
    longest = max(map(len, prompts)) + new
    llm = LLM(
        load_model(folder),
        backend="torch",
        cache=CacheOptions(num_blocks=32 * (longest // 16 + 2)),
        engine=EngineOptions(max_model_len=longest, max_batch_requests=32, max_batch_tokens=512),
    )
    start, cpu = time.perf_counter(), time.process_time()
    requests = llm.generate(prompts, Sampling(max_tokens=new, ignore_eos=True))
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu
    assert all(request.status is Status.FINISHED for request in requests), [request.reason for request in requests]
    return [request.completions[0].tokens for request in requests], seconds, cpu_s, llm.engine.metrics


def warm_up(folder, model):
    """Both sides run a few tokens; seconds that backend torch took to compile its decode."""
    llm = LLM(load_model(folder), backend={"name": "torch", "compile": True}, cache=CacheOptions(num_blocks=8))
    compile_s = llm.backend.facts().get("compile_s", 0.0)
    prompts = [list(range(2, 40)), list(range(3, 20))]
    ours(folder, prompts, 2)
    theirs(model, prompts, 2)
    return compile_s


def theirs(model, prompts, new):
    """`generate` on one left-padded static batch."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    start, cpu = time.perf_counter(), time.process_time()
    with torch.inference_mode():
        out = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=new, do_sample=False, pad_token_id=0)
    return out[:, width:].tolist(), time.perf_counter() - start, time.process_time() - cpu


@pytest.mark.timeout(0)
@pytest.mark.filterwarnings("ignore")  # transformers warns of its own deprecations
@pytest.mark.parametrize("workload", [no_sharing, shared_prefix], ids=lambda w: w.__name__)
def test_serve_against_transformers(benchmark, checkpoint, workload):
    folder, model = checkpoint
    prompts, new = workload(np.random.default_rng(0))
    total, rows, compile_s = len(prompts) * new, [], warm_up(folder, model)

    def one_round():
        tokens, seconds, cpu_s, metrics = ours(folder, prompts, new)
        reference, generate_s, generate_cpu_s = theirs(model, prompts, new)
        row = {
            "ours_tokens_per_s": total / seconds,
            "generate_tokens_per_s": total / generate_s,
            "over_generate": generate_s / seconds,
            "over_generate_cpu": generate_cpu_s / cpu_s,
            "ours_cpu_s": cpu_s,
            "generate_cpu_s": generate_cpu_s,
            "engine_overhead": 1 - metrics.forward_s / metrics.step_s,
            "hit_rate": metrics.hit_tokens / metrics.prompt_tokens,
            "equal_to_generate": sum(a == b for a, b in zip(tokens, reference, strict=True)),
        }
        rows.append(row)
        print("\n", workload.__name__, {key: round(value, 3) for key, value in row.items()})
        assert metrics.num_output_tokens == total

    benchmark.pedantic(one_round, rounds=ROUNDS, warmup_rounds=0)
    benchmark.extra_info.update(threads=torch.get_num_threads(), prompts=len(prompts), new_tokens=new)
    benchmark.extra_info.update(compile_s=compile_s)
    benchmark.extra_info.update({key: [round(row[key], 3) for row in rows] for key in rows[0]})


@pytest.mark.timeout(0)
@pytest.mark.parametrize("tokens", [32, 512], ids=["decode of 32 rows", "prompt chunk of 512"])
def test_what_the_matrix_products_of_a_step_take_alone(benchmark, tokens):
    """The linear layers of a step of these workloads and nothing else, as the engine has packed them."""
    model = random_model("qwen3-100m")
    LLM(model, backend="gather", cache=CacheOptions(num_blocks=8))  # packs the weights
    decoder, rows = model.decoder, min(tokens, 32)
    pairs = [(layer.attention, layer.mlp) for layer in decoder.layers]
    weights = [weight for own, mlp in pairs for weight in (own.qkv, own.output, mlp.gate_up, mlp.down)]
    inputs = {weight.shape[1]: torch.randn(tokens, weight.shape[1]) for weight in weights}
    sampled, spent = torch.randn(rows, decoder.config.hidden_size), []

    def one_step():
        start = time.process_time()
        with torch.inference_mode():
            for weight in weights:
                linear(inputs[weight.shape[1]], weight, None)
            logits = decoder.logits(sampled)
        spent.append(time.process_time() - start)
        assert logits.shape == (rows, decoder.config.vocab_size)

    benchmark.pedantic(one_step, rounds=10, warmup_rounds=2)
    flop = (
        2 * tokens * sum(weight.numel() for weight in weights)
        + 2 * rows * sampled.numel() // rows * decoder.config.vocab_size
    )
    assert len(weights) == 4 * decoder.config.num_layers
    benchmark.extra_info["cpu_ms"] = 1e3 * min(spent)
    print(f"\n{tokens} tokens: {1e3 * min(spent):.1f} ms of CPU, {flop / min(spent) / 1e9:.0f} GFLOP/s", end="")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_mlp_in_parts_that_stay_in_the_cache_beside_one_part(benchmark, dtype, monkeypatch):
    """Layers over 2,048 rows without their attention: `whole_over_parts`, interleaved, wall time."""
    from framework.model import layers as module

    model = random_model("qwen3-100m", dtype=dtype)
    LLM(model, backend="gather", cache=CacheOptions(num_blocks=8))  # packs the weights
    tokens, positions = torch.randint(0, 1000, (2048,)), torch.arange(2048)
    limits, ratios = (module._CACHED_BYTES, 2**60), []

    def one_pass(limit):
        monkeypatch.setattr(module, "_CACHED_BYTES", limit)
        start = time.perf_counter()
        model.decoder(tokens, positions, lambda layer, q, k, v: q)
        return time.perf_counter() - start

    def one_round():
        parts, whole = (one_pass(limit) for limit in limits)
        ratios.append(whole / parts)

    benchmark.pedantic(one_round, rounds=10, warmup_rounds=1)
    low, middle, high = np.percentile(ratios[1:], (10, 50, 90))
    benchmark.extra_info["whole_over_parts"] = middle
    print(f"\n{dtype}: {middle:.2f} ({low:.2f} to {high:.2f})", end="")
