"""The picture of mode=kernel: as wide as the others, and its text stays text."""

from __future__ import annotations

from framework_report.figures.style import WIDTH_IN, as_svg
from framework_testing.kernel import roofline_figure

KERNEL = [
    {
        "time_s": 1e-3, "flop": 1e9, "bytes": 1e8, "tflop_per_s": 1.0, "ceiling_gb_per_s": 50.0, "work": "decode",
        "ceiling_tflop_per_s": 0.2, "device_model": "CPU", "dtype": "float32", "lengths": "ragged", "backend": "torch",
        "date": "2026-11-22T00:00:00",
    }
]  # fmt: skip


def test_the_roofline_is_drawn_and_names_the_backend() -> None:
    figure = roofline_figure.draw(KERNEL)
    assert figure is not None
    assert figure.get_figwidth() == WIDTH_IN
    assert "torch" in as_svg(figure, "a roofline")
    assert roofline_figure.draw([{"status": "modelled"}]) is None, "without times there is none"
