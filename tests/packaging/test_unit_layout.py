"""tests/unit mirrors the source: a folder for each room and for each kind of built-in plugin, a file for a module.

`tests/unit/a/test_b.py` tests the module `a/b.py` of `framework` or of `framework_builtin`; `tests/unit/a/test_a.py`
tests the room as a whole. A file of another name stands in `OVER_MODULES`, with what it tests across modules.
"""

from __future__ import annotations

from pathlib import Path

OVER_MODULES = {
    "engine/test_kv_dtype.py": "the dtype of K and V from the configuration to the pool",
    "engine/test_pretended_device.py": "a serve step on a device that is not there, over all modules of the step",
    "engine/test_sharing_within_a_step.py": "blocks that rows of one step share, from the scheduler to the allocators",
    "engine/test_sharing_over_a_model.py": "sharing within a step over a real model, in every backend",
    "guard/test_fault_grid.py": "every hook of every kind of plugin with every kind of fault",
    "guard/test_only_guards_call_plugins.py": "a run in which every plugin looks at who calls it",
    "paged/test_contents.py": "contents that are not text, from a file of prompts to a hit and a trace",
    "paged/test_drop.py": "tokens that are dropped, over allocator, cache and audit",
    "engine/test_window.py": "sliding windows, from an engine's option to the blocks that its rows keep",
    "modes/test_threads.py": "the threads of torch that a run takes, in every mode",
    "modes/test_equal_bytes.py": "what fewer bits buy, in every mode",
    "paged/test_last_requests.py": "what a policy may read of the requests behind its blocks, in every mode",
    "paged/test_admission.py": "policies that decline content, in allocators, replay and the native core",
    "paged/test_adversaries.py": "policies and hash schemes that misbehave, in every allocator",
    "paged/test_duplicates.py": "equal contents in several blocks, in allocators that keep them",
    "paged/test_sharing_rules.py": "rules of sharing, for every installed allocator",
    "replay/test_policy_time.py": "the clock that policies see, in each kind of run",
    "groups/test_served_groups.py": "models of full attention beside windows or states, from LLM to executor",
}
"""Test file -> what it tests that no single module does."""

NO_ROOMS = {"experiments"}
"""Folders of tests of what lies outside the packages: experiments/."""


def modules(repository: Path) -> set[str]:
    """`room/module` of every module in a room; a module's leading underscore is not part of its name."""
    found = set()
    for base in (repository / "framework", repository / "plugins" / "framework_builtin"):
        for path in base.glob("*/**/*.py"):
            relative = path.relative_to(base)
            found.add(relative.with_name(relative.stem.lstrip("_")).as_posix())
    return found


def unit_tests(repository: Path) -> list[Path]:
    unit = repository / "tests" / "unit"
    return sorted(path.relative_to(unit) for path in unit.glob("*/**/test_*.py"))


def packages(folder: Path) -> set[str]:
    return {path.parent.name for path in folder.glob("*/__init__.py")}


def test_a_folder_of_unit_tests_is_named_after_what_it_tests(repository: Path) -> None:
    rooms = packages(repository / "framework") | packages(repository / "plugins" / "framework_builtin")
    folders = {path.parts[0] for path in unit_tests(repository)}
    assert folders <= rooms | NO_ROOMS, folders - rooms


def test_a_unit_test_is_named_after_the_module_it_tests_or_says_what_else(repository: Path) -> None:
    known, unnamed = modules(repository), []
    for path in unit_tests(repository):
        name = path.stem.removeprefix("test_")
        of_module = path.with_name(name).as_posix() in known or path.parent.name == name
        if not of_module and path.parts[0] not in NO_ROOMS and path.as_posix() not in OVER_MODULES:
            unnamed.append(path.as_posix())
    assert not unnamed, f"no module of these names, and not in OVER_MODULES: {unnamed}"


def test_the_list_of_tests_over_modules_has_no_others(repository: Path) -> None:
    known, found = modules(repository), {path.as_posix() for path in unit_tests(repository)}
    assert set(OVER_MODULES) <= found, set(OVER_MODULES) - found
    named = [name for name in OVER_MODULES if name.replace("test_", "").removesuffix(".py") in known]
    assert not named, f"modules of these names exist now: {named}"


def test_a_unit_test_outside_the_folders_is_of_a_module_outside_the_packages(repository: Path) -> None:
    loose = {path.stem for path in (repository / "framework").glob("*.py")}
    tested = {path.stem.removeprefix("test_") for path in (repository / "tests" / "unit").glob("test_*.py")}
    assert tested <= loose, tested - loose
