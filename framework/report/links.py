"""The table that a measurement of links ends with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def print_links(links: Mapping[str, Any], console: Console) -> None:
    """Print each link's model by direction, how near it is to what was measured, and where it is not.

    Args:
        links: by name, as links.json holds them.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True)
    for title in ("link", "direction"):
        table.add_column(title, no_wrap=True)
    for title in ("GB/s", "us an operation", "rms", "worst"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, link in links.items():
        for way, words in (("read", "out of it"), ("write", "into it")):
            fit, rate = link["fits"][way], link[f"{way}_bytes_per_s"]
            numbers = ("any" if rate is None else f"{rate / 1e9:.2f}", f"{link[f'{way}_operation_s'] * 1e6:.1f}")
            table.add_row(name, words, *numbers, f"{fit['rms']:.1%}", f"{fit['worst']:+.1%}")
    console.print(table)
    for name, link in links.items():
        both = "beside each other" if link["duplex"] else "one operation at a time"
        console.print(f"{name}: the directions go on {both}; {_differences(link)}", markup=False)


def _differences(link: Mapping[str, Any]) -> str:
    off = link["off_by_15_percent"]
    if not off:
        return f"model and measurement within 15 % at all {link['num_points']} points"
    worst = max(off, key=lambda row: abs(row["off"]))
    return (
        f"they differ by more than 15 % at {len(off)} of {link['num_points']} points, most at {worst['direction']} "
        f"{worst['blocks']} x {worst['block_bytes']:,} bytes: {worst['model_s'] * 1e6:,.0f} us modelled, "
        f"{worst['time_s'] * 1e6:,.0f} us measured"
    )
