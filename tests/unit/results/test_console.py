"""The final table: every number of the result is there, nothing breaks at 80 columns, no colour in a file."""

import io

import pytest

from framework.results.console import print_result

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
        "finished": "46 of 48", "rejected": "1", "failed": "1", "differ from dense": "0 of 8", "dense ties": "2",
        "output tokens/s": "334",
        "first token": "500 ms", "each next token": "23.1 us     0 s   250 s", "hit rate": "64.4 %",
        "hit rate by blocks": "61.2 %", "prompt tokens hit": "9,032 of 14,033", "utilisation": "95.1 %",
        "internal waste": "4.9 %", "reserved waste": "0.0 %", "cached, idle": "21.0 %",
        "forks": "22", "block copies": "17", "evictions": "3", "preemptions": "5", "time ": "3.45 s",
    }.items():  # fmt: skip
        assert value in _line(text, title), text
    assert "serve: tiny chat prefix_cow lru sha256 torch" in text
    assert "512 blocks of 16 tokens, seed 3" in text
    assert "virtual clock" in text
    assert "wall clock" not in text


def test_what_nobody_declared_or_does_not_apply_is_no_row() -> None:
    text = _printed(RESULT)
    assert "also in result.json: my_own_count, my_[red]list, my_flag" in text, "a key is text, not markup"
    assert "external waste" not in text, "it had no denominator"
    assert "cancelled" not in text, "none was"
    assert "graph" not in _printed({**RESULT, "cuda_graphs": False, "cuda_graphs_off": "device cpu", "eager_steps": 5})
    assert "graph" in _printed({**RESULT, "device": "cuda:0", "cuda_graphs": True, "graph_steps": 5})


def test_a_part_and_its_whole_have_units_and_nothing_is_no_tebibytes() -> None:
    used = {"window_peak_used_bytes": 14 * 2**30, "state_peak_used_bytes": 0}
    text = _printed({"mode": "serve", **used, "window_bytes": 428_828_786_688, "state_bytes": 428_828_786_688})
    assert _line(text, "windows: peak in use").split()[4:] == ["14", "GiB", "of", "399", "GiB"], text
    assert _line(text, "states: peak in use").split()[4:] == ["0", "B", "of", "399", "GiB"], text
    assert "0 s" in _line(_printed({"replay_s": 0.0}), "replayed in")


def test_a_recorded_replay_counts_steps_not_seconds() -> None:
    timed = ("wall_s", "tokens_per_s", "requests_per_s")
    counted = {key: value for key, value in RESULT.items() if not key.endswith(timed)}
    text = _printed({**counted, "clock": "steps", "wall_steps": 25.0, "replay_s": 0.5})
    assert _line(text, "time, in steps").split()[3] == "25", text
    assert "tokens/s" not in text
    assert "500 ms" in _line(text, "replayed in")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal_or_100_columns(width: int) -> None:
    *lines, last = _printed(RESULT, width).splitlines()
    assert last == f"results in {RESULT['run_directory']}", "a path is whole, to be copied"
    assert max(len(line) for line in lines) <= min(width, 100), "\n".join(lines)


def test_a_file_gets_no_colour_codes() -> None:
    assert "\x1b" not in _printed(RESULT)


def test_a_mismatch_with_the_dense_model_is_shown() -> None:
    assert "3 of 8" in _line(_printed({**RESULT, "dense_mismatches": 3}), "differ from dense")
    assert _printed({"dense_checked": None}).strip() == ""


def test_a_failed_run_and_an_empty_one_are_printed_too() -> None:
    assert "(failed)" in _printed({**RESULT, "status": "failed"})
    assert _printed({}).strip() == ""


def test_a_lossy_backend_s_table_does_not_say_that_no_token_differs() -> None:
    result = {
        **RESULT, "dense_mismatches": None, "loss_exceeded": 0, "dense_agreement": 0.75, "attention_error": 0.01,
        "attention_error_declared": 0.05,
    }  # fmt: skip
    text = _printed(result)
    assert "differ from dense" not in text, text
    assert "0 of 8" in _line(text, "lost more than declared")
    assert "75.0 %" in _line(text, "agrees with dense")


def test_a_run_that_names_an_order_of_the_queue_and_its_threads_is_no_failure() -> None:
    text = _printed({**RESULT, "scheduling": "fair", "num_threads": 1})
    assert "serve: tiny chat prefix_cow lru fair sha256 torch" in text
    assert not any(line.strip() == "failure" for line in text.splitlines()), text
