"""The page of a report needs nothing from outside and shows every part."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from framework.report.write import write_report
from report.runs import make_sweep


class _Page(HTMLParser):
    """Collects tags and attributes, and that elements close in order."""

    VOID = frozenset({"meta", "br", "path", "use", "rect", "circle", "line", "polygon", "image"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for key, value in attributes:
            if key in ("src", "href", "xlink:href", "data", "poster", "action", "srcset"):
                self.references.append(str(value))

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag, (tag, self.open[-3:])


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of one sweep, drawn once."""
    folder = tmp_path_factory.mktemp("example")
    write_report([make_sweep(folder)], folder / "out")
    return (folder / "out" / "report.html").read_text()


def test_the_page_needs_nothing_from_outside(example: str) -> None:
    page = _Page()
    page.feed(example)
    assert page.open == []
    assert all(reference.startswith("#") for reference in page.references), page.references
    assert not {"script", "link", "iframe", "object", "embed", "img"} & set(page.tags)
    assert "@import" not in example
    assert not re.search(r"url\((?!['\"]?#)", example)
    namespaces = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert set(re.findall(r"https?://[^\s\"'<>)]+", example)) <= namespaces


def test_the_page_shows_every_part(example: str) -> None:
    for heading in ("Ranking", "Against lru", "Plots", "Inside single runs", "Runs that did not end well"):
        assert heading in example, heading
    for title in ("hit rate over capacity (blocks)", "hit rate against lru", "Latency over throughput",
                  "Memory over time", "Block map",
                  "Evictions", "Fork tree"):  # fmt: skip
        assert title in example, title
    for layer in ("live", "internal", "reserved", "external", "cached, idle", "free"):
        assert f">{layer}<" in example, layer


def test_the_page_escapes_what_a_run_says(example: str) -> None:
    assert "<script>" not in example
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in example
    assert "bad_&lt;b&gt;&amp;" in example


def test_the_page_suits_dark_rooms_phones_and_paper(example: str) -> None:
    for rule in ("prefers-color-scheme: dark", "@media print", "@media (max-width", "width=device-width"):
        assert rule in example, rule
    assert "currentColor" in example
    assert "#010203" not in example
