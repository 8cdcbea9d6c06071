"""Whatever the configuration is asked for, a run ends with status 0, 1 or 2 and a sentence, and nothing is lost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from config_fuzz import Fuzz, search

from framework.kernel import bench


@pytest.mark.timeout(300)
def test_random_command_lines_end_in_a_result_or_a_sentence_and_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr(bench, "last_level_cache_bytes", lambda device: 1 << 18)  # few pools of mode=kernel
    statuses, faults = search(tmp_path, number=40, seed=20261122, slowest_s=120)
    assert not faults, faults
    assert {0, 2} <= set(statuses), f"one kind of command line only: {statuses}"


def test_the_fuzzer_sees_what_a_run_may_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import config_fuzz

    monkeypatch.chdir(tmp_path)
    fuzz = Fuzz(tmp_path, 0)

    def ends(status: object, said: str = "", harm: object = None) -> None:
        def call(words: object) -> object:
            sys.stderr.write(said)
            if isinstance(harm, Path):
                harm.unlink()
            if isinstance(harm, Exception):
                raise harm
            return status

        monkeypatch.setattr(config_fuzz, "call", call)
        fuzz.run([])

    ends(0)
    ends(2, "ConfigError: no such key\n")
    for status, said, harm in (
        (2, "", None), (3, "ConfigError: x", None), (1, "internal error: KeyError", None),
        (1, "Traceback (most recent call last)", None), (0, "", ValueError("escaped")),
        (2, "ConfigError: x", tmp_path / "earlier/result.json"), (0, "", tmp_path / "earlier/result.json"),
        (0, "", tmp_path / "mine/notes.txt"),
    ):  # fmt: skip
        with pytest.raises((AssertionError, ValueError)):
            ends(status, said, harm)
