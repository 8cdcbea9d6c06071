"""README says what works: its example is run, its markers are what CI reads, its list of built-ins is whole."""

import re
import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def readme(repository: Path) -> str:
    return (repository / "README.md").read_text()


def _commands(readme: str, name: str) -> list[str]:
    found = re.findall(rf"<!-- {name}:begin -->\n```\w+\n(.*?)```\n<!-- {name}:end -->", readme, re.DOTALL)
    assert len(found) == 1, f"README wants one block between the markers of {name!r}, found {len(found)}"
    return str(found[0]).strip().splitlines()


def test_one_command_runs_and_one_tests(readme: str) -> None:
    assert _commands(readme, "run") == ["make run"]
    assert _commands(readme, "test") == ["make test"]


def test_the_set_up_reads_the_torch_of_pyproject(repository: Path) -> None:
    makefile = (repository / "Makefile").read_text()
    found = re.search(r"sed -n '(s/.*)' pyproject.toml", makefile)
    assert found, "the Makefile no longer takes torch's range from pyproject.toml"
    command = ["sed", "-n", found[1].replace("$$", "$"), str(repository / "pyproject.toml")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    wanted = re.search(r'"(torch>=[^"]+)"', (repository / "pyproject.toml").read_text())
    assert wanted is not None
    assert printed == wanted[1] + "\n", printed


def test_the_example_policy_passes_its_kit(readme: str) -> None:
    from framework_testing import eviction_checks

    names: dict = {}
    exec("\n".join(_commands(readme, "example")), names)
    assert eviction_checks
    for check in eviction_checks:
        check(names["FewestHits"])


@pytest.mark.parametrize("kind", ["allocator", "eviction", "hash", "backend", "workload"])
def test_every_built_in_is_listed(readme: str, kind: str) -> None:
    from importlib.metadata import distribution

    row = next(
        line for line in readme.partition("## What is built in")[2].splitlines() if line.startswith(f"| [`{kind}`]")
    )
    points = distribution("kvcache-framework").entry_points
    missing = [point.name for point in points if point.group == f"framework.{kind}" and f"`{point.name}`" not in row]
    assert not missing, f"README does not list {missing}"


def test_every_link_to_a_file_leads_somewhere(readme: str, repository: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", readme) + re.findall(r'src(?:set)?="([^"]+)"', readme):
        assert (repository / target).exists(), target


def test_every_picture_has_a_light_and_a_dark_version_and_a_text(readme: str, repository: Path) -> None:
    pictures = re.findall(r"<picture>(.*?)</picture>", readme, re.DOTALL)
    assert pictures
    for picture in pictures:
        dark, light = re.findall(r'src(?:set)?="([^"]+)"', picture)
        assert "prefers-color-scheme: dark" in picture
        assert dark.replace("-dark", "-light") == light
        assert re.search(r'alt="[^"]{20,}"', picture)
        for file in (dark, light):
            assert (repository / file).stat().st_size < 50_000, f"{file} is large for a page"
