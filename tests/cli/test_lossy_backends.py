"""A run on a backend that declares what it loses: measured and reported, a failure beyond what was declared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from framework.results.reading import read_result

SMALL = ("workload.num_requests=4", "workload.output_tokens=6", "run.progress=false", "run.dir=out")


@pytest.mark.parametrize(("backend", "fails"), [("Int8Reader", False), ("Int2Reader", True), ("SaysNothing", True)])
def test_a_run_reports_the_loss_and_fails_beyond_what_is_declared(
    backend: str, fails: bool, distribution: Any, command: Any, elsewhere: Path, repository: Path
) -> None:
    example = (repository / "plugins/framework-example/framework_example/backend.py").read_text()
    others = """
class Int2Reader(Int8Reader):
    def attend_one(self, q, k, v, row):
        return super().attend_one(q, rounded(k, 1), rounded(v, 1), row)

class SaysNothing(Int2Reader):
    capabilities = Capabilities(dtypes=frozenset({"float32"}), devices=frozenset({"cpu"}))
"""
    entries = "".join(f"{name} = lossy_module:{name}\n" for name in ("Int8Reader", "Int2Reader", "SaysNothing"))
    distribution("lossy", f"[framework.backend]\n{entries}", lossy_module=example + others)
    status, out, err = command(f"backend={backend}", *SMALL)
    assert status == int(fails), err
    result = read_result(elsewhere / "out")
    assert result["dense_checked"] > 0, result
    if backend == "SaysNothing":
        assert "requests differ from the dense model" in err, err
        assert result.get("attention_error") is None, result
        return
    assert 0.0 <= result["dense_agreement"] <= 1.0, result
    assert result["dense_logit_error"] > 0.0, result
    assert result["dense_kl_divergence"] > 0.0, result
    assert result["attention_error_declared"] == 0.05, result
    assert (result["attention_error"] > 0.05) == fails, result
    assert "attention error" in out, out
    assert ("lost more than the backend declares" in err) == fails, err
