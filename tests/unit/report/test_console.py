"""The final table: every number of the result is there, nothing breaks at 80 columns, no colour in a file."""

import io

import pytest

from framework.report.console import print_result

RESULT = {
    "status": "ok", "mode": "serve", "clock": "virtual", "model": "tiny", "workload": "chat", "allocator": "prefix_cow",
    "eviction": "lru", "hash": "sha256", "backend": "torch", "seed": 3, "device": "cpu", "dtype": "float32",
    "num_blocks": 512, "block_size": 16, "num_requests": 48, "num_finished": 46, "num_cancelled": 0, "num_rejected": 1,
    "num_failed": 1, "prompt_tokens": 14033, "hit_tokens": 9032, "hit_rate": 0.6436, "hit_rate_blocks": 0.612,
    "utilisation": 0.951, "waste_internal": 0.049, "waste_reserved": 0.0, "waste_external": None, "cached_idle": 0.21,
    "output_tokens_per_s": 333.7, "wall_s": 3.4521, "ttft_s_p50": 0.5, "ttft_s_p95": 0.95, "ttft_s_p99": 0.99,
    "tpot_s_p50": 2.31e-5, "tpot_s_p95": 0.0, "tpot_s_p99": 250.0, "num_forks": 22, "num_copied_blocks": 17,
    "num_evictions": 3, "num_preemptions": 5, "dense_checked": 8, "dense_mismatches": 0, "dense_ties": 2,
    "my_own_count": 1234, "my_[red]list": [1, 2.5], "my_flag": True, "run_directory": "runs/" + "x" * 120,
}  # fmt: skip


def _printed(result: dict, width: int | None = None) -> str:
    file = io.StringIO()
    print_result(result, file=file, width=width)
    return file.getvalue()


def _line(text: str, title: str) -> str:
    return next(line for line in text.splitlines() if line.strip().startswith(title))


def test_the_table_shows_what_people_look_for() -> None:
    text = _printed(RESULT)
    for title, value in {
        "finished": "46 of 48", "others": "1, 0, 1", "dense check": "8 of 8 equal, 2 ties", "output tokens/s": "334",
        "first token": "500 ms", "each next token": "23.1 us     0 s   250 s", "hit rate": "64.4 %",
        "by blocks": "61.2 %", "prompt tokens hit": "9,032 of 14,033", "utilisation": "95.1 %",
        "internal waste": "4.9 %", "reserved waste": "0.0 %", "external waste": "-", "cached, idle": "21.0 %",
        "forks": "22", "block copies": "17", "evictions": "3", "preemptions": "5", "time ": "3.45 s",
    }.items():  # fmt: skip
        assert value in _line(text, title), text
    assert "serve: tiny chat prefix_cow lru sha256 torch" in text
    assert "512 blocks of 16 tokens, seed 3" in text
    assert "virtual clock" in text
    assert "wall clock" not in text


def test_unknown_keys_are_shown_as_they_are() -> None:
    text = _printed(RESULT)
    assert _line(text, "my_own_count").split() == ["my_own_count", "1234"]
    assert "my_[red]list" in text, "a key is text, not markup"
    assert _line(text, "my_flag").split() == ["my_flag", "yes"]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal_or_100_columns(width: int) -> None:
    *lines, last = _printed(RESULT, width).splitlines()
    assert last == f"results in {RESULT['run_directory']}", "a path is whole, to be copied"
    assert max(len(line) for line in lines) <= min(width, 100), "\n".join(lines)


def test_a_file_gets_no_colour_codes() -> None:
    assert "\x1b" not in _printed(RESULT)


def test_a_mismatch_is_told() -> None:
    assert "3 of 8 differ" in _printed({**RESULT, "dense_mismatches": 3})
    assert "not checked" in _printed({"dense_checked": None})


def test_a_failed_run_and_an_empty_one_are_printed_too() -> None:
    assert "(failed)" in _printed({**RESULT, "status": "failed"})
    assert _printed({}).strip() == ""
