"""The definitions of all result keys as tables of docs/results.md."""

from __future__ import annotations

from collections.abc import Iterator

from framework.results.catalogue import FAMILIES, catalogue, sections

BEGIN, END = "<!-- definitions:begin -->", "<!-- definitions:end -->"


def definitions() -> str:
    """One Markdown table a section, in the order of the catalogue."""
    return "\n\n".join(
        f"### {section[0].upper() + section[1:]}\n\n" + "\n".join(_rows(section)) for section in sections()
    )


def with_definitions(page: str) -> str:
    """The page with the definitions between its two markers renewed."""
    before, rest = page.split(BEGIN, 1)
    return f"{before}{BEGIN}\n\n{definitions()}\n\n{END}{rest.split(END, 1)[1]}"


def _rows(section: str) -> Iterator[str]:
    yield "| key | unit | better | definition |"
    yield "|---|---|---|---|"
    for metric in catalogue().values():
        if metric.section == section:
            definition = metric.definition.replace("|", "\\|")  # a pipe would end the cell
            yield f"| `{metric.key}` | {metric.unit} | {metric.better} | {definition} |"
    if section == "plugins":
        for kind, definition in FAMILIES.items():
            yield f"| `{kind}_*` | any | | {definition[0].upper()}{definition[1:]}. |"
