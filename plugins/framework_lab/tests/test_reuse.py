"""`python -m framework reuse`: the picture of a trace's reuse distances."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import command


def test_reuse_draws_a_trace_with_blocks_and_refuses_what_it_cannot_draw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks, lengths, plot = tmp_path / "blocks.jsonl", tmp_path / "azure.csv", tmp_path / "reuse.png"
    rows = [{"timestamp": at, "input_length": 1024, "output_length": 3, "hash_ids": [1, 2]} for at in (0, 1000)]
    blocks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    lengths.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6,374,44\n")
    reuse = command("reuse")
    assert reuse([str(blocks), "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert reuse([str(blocks), "--plot", str(plot)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert reuse([str(blocks), "--plot", str(tmp_path / "reuse.gif")]) == 2
    assert reuse([str(lengths), "--plot", str(tmp_path / "x.png")]) == 2
    assert "lengths only" in capsys.readouterr().err
    assert not (tmp_path / "x.png").exists()
