"""A command line in this process, with the run itself replaced by a recorder, and distributions made on disk."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import Command

from framework import api
from framework.config.config import Config


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Every configuration that `framework.api.run` was called with; nothing is served."""
    seen: list[dict[str, Any]] = []

    def record(config: Config, **begin: Any) -> dict[str, Any]:
        seen.append(config.plain())
        return {"status": "ok"}

    monkeypatch.setattr(api, "run", record)
    return seen


Failing = Callable[..., AbstractContextManager[None]]


@pytest.fixture
def failing() -> Failing:
    """`with failing(error, where, begun)`: a run whose configuration is such raises this error instead."""

    @contextmanager
    def patched(
        error: BaseException, where: Callable[[Config], bool] = lambda config: True, *, begun: bool = False
    ) -> Iterator[None]:
        real = api.run

        def run(config: Config, **begin: Any) -> dict[str, Any]:
            if not where(config):
                return real(config, **begin)
            if begun:  # its directory is its own already
                begin["on_begin"](Path(config.run.dir))
            raise error

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(api, "run", run)
            yield

    return patched


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that is not the checkout."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    return folder


@pytest.fixture
def command(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """`distribution(name, entry_points, **modules)` puts an installed distribution on sys.path; returns its folder."""
    before = set(sys.modules)

    def make(name: str, entry_points: str, **modules: str) -> Path:
        site = tmp_path / f"site-{name}"
        info = site / f"{name.replace('-', '_')}-1.5.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        (info / "entry_points.txt").write_text(textwrap.dedent(entry_points))
        for module, text in modules.items():
            (site / f"{module}.py").write_text(textwrap.dedent(text))
        monkeypatch.syspath_prepend(str(site))
        return site

    yield make
    for module in set(sys.modules) - before:
        if getattr(sys.modules[module], "__file__", None) and str(tmp_path) in str(sys.modules[module].__file__):
            del sys.modules[module]
