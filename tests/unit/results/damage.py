"""What a crash, a disk or a hostile hand may leave in the files of a run."""

from __future__ import annotations

import json

DAMAGE: dict[str, tuple[str, str]] = {
    "401 digits": ("result.json", json.dumps({"status": "ok", "hit_rate": 0.1}).replace("0.1", "9" * 401)),
    "5000 digits": ("result.json", '{"status": "ok", "hit_rate": ' + "9" * 5000 + "}"),
    "deep JSON": ("result.json", '{"status": "ok", "a": ' + "[" * 100_000 + "]" * 100_000 + "}"),
    "infinite": ("result.json", '{"status": "ok", "hit_rate": 1e999}'),
    "no object": ("result.json", "[1]"),
    "not text": ("result.json", "\udcff"),
    "surrogates": ("result.json", '{"status": "ok", "hit_rate": 0.1, "\\ud800": "\\ud800"}'),
    "odd status": ("result.json", '{"status": [1], "num_failed": "x", "reasons": {"a": 1}}'),
    "recursive YAML": ("config.yaml", "a: &a\n  b: *a\n"),
    "odd keys": ("config.yaml", "1: 2\nnull: 3\n2026-01-01: 4\n[1, 2]: 5\n"),
    "no mapping": ("config.yaml", "- 1\n- 2\n"),
    "deep YAML": ("config.yaml", "[" * 5000),
    "odd provenance": (
        "provenance.json",
        json.dumps({"package": "x", "argv": [1], "cpu": [], "inputs": [{"name": []}]}),
    ),
    "provenance is a list": ("provenance.json", "[]"),
    "odd overrides": ("job.json", json.dumps({"overrides": [1, None, "a"]})),
    "odd failure": ("failure.json", json.dumps({"status": 3, "reason": {"a": []}, "overrides": 7})),
}
