"""What OpenVINO GenAI answers to prompts of token ids, with its block eviction at several cache sizes.

Runs in OpenVINO's environment, not in ours: `peer_side.py MODEL_FOLDER QUESTIONS.json ANSWERS.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai


def main(model: str, questions: str, answers: str) -> None:
    """Answer the questions at each cache size."""
    asked = json.loads(Path(questions).read_text())
    found = [{**size, **answered(model, asked, size)} for size in asked["sizes"]]
    Path(answers).write_text(json.dumps({"version": genai.__version__, "found": found}))


def answered(model: str, asked: dict[str, Any], size: dict[str, Any]) -> dict[str, Any]:
    """The tokens generated for each prompt, one after another, and the most blocks that were in use, in percent."""
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = asked["num_blocks"]
    scheduler.enable_prefix_caching = False
    if size["max_tokens"] is not None:
        scheduler.use_cache_eviction = True
        scheduler.cache_eviction_config = genai.CacheEvictionConfig(
            asked["start_tokens"], asked["recent_tokens"], size["max_tokens"], genai.AggregationMode.NORM_SUM
        )
    exact = {"KV_CACHE_PRECISION": "f32", "INFERENCE_PRECISION_HINT": "f32"}
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", exact)
    tokens = []
    for prompt in asked["prompts"]:
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.apply_chat_template = asked["answer_tokens"], True, False
        [done] = pipeline.generate([openvino.Tensor(np.array([prompt], dtype=np.int64))], [config])
        tokens.append(list(done.m_generation_ids[0]))
    metrics = pipeline.get_metrics()
    return {"tokens": tokens, "most_used_share": metrics.max_cache_usage / 100}


if __name__ == "__main__":
    main(*sys.argv[1:])
