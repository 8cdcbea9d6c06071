"""A plugin's content is its code: what it imports beside it, the packages of its distribution, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from framework.registry import content as contents
from framework.registry import find, framework_content
from framework.registry.content import content_of
from framework.registry.lookup import NOT_INSTALLED, Plugin


def fresh(plugin: Plugin) -> str:
    """As another process finds it."""
    contents._content.cache_clear()
    return content_of(plugin)


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_file_s_content_is_its_own_and_that_of_what_it_imports_beside_it(tmp_path: Path) -> None:
    write(
        tmp_path,
        ed_dot_py="import os\ndef f():\n    from helper import g\nclass Mine: ...",
        helper_dot_py="import pack.deep",
        pack__deep_dot_py="x = 1",
        other_dot_py="",
    )
    mine = Plugin("eviction", "ed.py:Mine", f"{tmp_path / 'ed.py'}:Mine", NOT_INSTALLED, "")
    seen = [fresh(mine)]
    for name in ("ed.py", "helper.py", "pack/deep.py"):
        path = tmp_path / name
        path.write_text(path.read_text() + "\n# edited")
        seen.append(fresh(mine))
    assert len(set(seen)) == 4, seen
    write(tmp_path, other_dot_py="edited", results_dot_json="{}", pack__rows_dot_csv="1")
    assert fresh(mine) == seen[-1], "what it does not import counts"
    assert content_of(mine) == seen[-1]
    (tmp_path / "ed.py").write_text("class Mine: ...")
    assert content_of(mine) == seen[-1], "a process that imported it once reads it again"


def test_a_package_s_content_has_the_places_of_its_files_and_its_native_code_and_nothing_shared(tmp_path: Path) -> None:
    write(tmp_path, ed_dot_py="import pack", pack____init___dot_py="", pack__one__two__deep_dot_py="x = 1")
    mine = Plugin("eviction", "ed.py:Mine", f"{tmp_path / 'ed.py'}:Mine", NOT_INSTALLED, "")
    seen = [fresh(mine)]
    (tmp_path / "pack" / "one" / "two" / "deep.py").write_text("x = 2")
    seen.append(fresh(mine))
    (tmp_path / "pack" / "one" / "two").rename(tmp_path / "pack" / "one" / "zwei")
    seen.append(fresh(mine))
    for suffix in ("so", "cu"):
        (tmp_path / "pack" / f"kernel.{suffix}").write_bytes(b"1")
        seen.append(fresh(mine))
    assert len(set(seen)) == 5, seen
    shared = tmp_path / "site-packages"
    write(shared, ed_dot_py="import helper", helper_dot_py="x = 1")
    installed = Plugin("eviction", "ed.py:Mine", f"{shared / 'ed.py'}:Mine", NOT_INSTALLED, "")
    before = fresh(installed)
    (shared / "helper.py").write_text("x = 2")
    assert fresh(installed) == before, "what lies beside it there is of others"


def test_an_installed_distribution_s_content_is_its_version_and_all_of_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "acme-1.0.dist-info"
    write(tmp_path, acme____init___dot_py="", acme__core__deep_dot_py="x = 1", unrelated_dot_py="")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[framework.eviction]\nacme = acme:Policy\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed = find("eviction", "acme")
    first = fresh(installed)
    (tmp_path / "acme" / "core" / "deep.py").write_text("x = 2")
    edited = fresh(installed)
    assert edited != first
    (tmp_path / "acme" / "result.json").write_text("{}")
    (tmp_path / "unrelated.py").write_text("edited")
    assert fresh(installed) == edited, "what is not the distribution's code counts"
    newer = Plugin(installed.kind, installed.name, installed.value, installed.distribution, "1.1")
    assert fresh(newer) != edited


def test_the_built_in_plugins_are_the_framework_s_own_content() -> None:
    found = framework_content()
    assert len(found) == 64
    assert content_of(find("eviction", "lru")) == found
    files = {str(path) for top in ("framework", "framework_builtin") for _, path in contents._files(top)}
    assert any(name.endswith("framework_builtin/eviction/lru.py") for name in files), len(files)
    assert any(name.endswith("framework/replay/items.py") for name in files), len(files)
