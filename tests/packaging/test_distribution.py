"""What gets installed: the wheel, the wheel made from the sdist, and the editable install, each opened and run."""

import tarfile
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
from environments import build, fresh_environment, pip_install, run

pytest.importorskip("hatchling", reason="hatchling, of the test extra, builds the distributions")

PROBE = """
import sys
import framework, framework_builtin
from framework import workload
assert not {"torch", "hydra", "triton", "wandb"} & set(sys.modules), sorted(sys.modules)
print(framework.__file__)
print(framework_builtin.__file__)
print(len(workload.build("chat")))
"""


@pytest.fixture(scope="module")
def sdist(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(repository, tmp_path_factory.mktemp("sdist"), "sdist")


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(place, filter="data")
    (source,) = place.iterdir()
    return source


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(repository, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    python = fresh_environment(tmp_path_factory.mktemp("installed") / "venv")
    run(*pip_install(python), wheel, cwd=wheel.parent)
    return python


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def _packages(repository: Path) -> set[str]:
    """The import packages beside the core: folders of plugins/ whose names Python can import."""
    return {path.parent.name for path in (repository / "plugins").glob("framework_*/__init__.py")}


def test_the_wheel_holds_the_framework_its_packages_and_nothing_else(wheel: Path, repository: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert tops == {"framework", *_packages(repository), "kvcache_framework-0.1.0.dist-info"}, tops


def test_the_templates_of_reports_travel_inside_the_wheel(wheel: Path, repository: Path) -> None:
    plugins = repository / "plugins"
    source = {path.relative_to(plugins).as_posix() for path in plugins.glob("framework_*/templates/*.j2")}
    assert source
    assert source == {name for name in _names(wheel) if name.endswith(".j2")}


def test_every_configuration_file_travels_inside_the_wheel(wheel: Path, repository: Path) -> None:
    source = {path.relative_to(repository).as_posix() for path in (repository / "conf").rglob("*.yaml")}
    inside = {name.removeprefix("framework/") for name in _names(wheel) if name.startswith("framework/conf/")}
    assert source == inside
    assert source


def test_every_module_and_type_marker_is_in_the_wheel(wheel: Path, repository: Path) -> None:
    names = _names(wheel)
    for root in (repository / "framework", *(repository / "plugins" / name for name in _packages(repository))):
        inside = root.name
        wanted = {
            f"{inside}/{path.relative_to(root).as_posix()}"
            for path in root.rglob("*.py")
            if "tests" not in path.relative_to(root).parts
        }
        assert wanted <= names, wanted - names
        assert f"{inside}/py.typed" in names
    ours = [name for name in names if not name.startswith("framework_testing/example/")]
    assert not [name for name in ours if "test_" in name or "__pycache__" in name]


def test_the_example_travels_inside_the_wheel(wheel: Path, repository: Path) -> None:
    example = repository / "plugins" / "framework-example"
    listed = run("git", "ls-files", "-c", "-o", "--exclude-standard", cwd=example).splitlines()
    source = {f"framework_testing/example/{path}" for path in listed if (example / path).exists()}
    assert len(source) > 25, source
    assert source == {name for name in _names(wheel) if name.startswith("framework_testing/example/")}


def test_a_package_begun_from_the_wheel_is_checked(installed: Path, tmp_path: Path) -> None:
    run(installed, "-m", "framework", "new", "my-hash", "--kind", "hash", cwd=tmp_path)
    checked = run(installed, "-m", "framework", "check", "my-hash/my_hash/hash.py:MyHash", "--no-cost", cwd=tmp_path)
    assert "hash" in checked, checked


def test_the_wheel_of_the_sdist_is_the_wheel(unpacked: Path, wheel: Path, tmp_path: Path) -> None:
    assert _names(build(unpacked, tmp_path)) == _names(wheel)


def test_the_sdist_holds_sources_and_no_results(unpacked: Path, repository: Path) -> None:
    tops = {path.name for path in unpacked.iterdir()}
    allowed = {
        "framework", "plugins", "conf", "tests", "README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "PKG-INFO",
        ".gitignore",
    }  # fmt: skip
    assert tops <= allowed, tops - allowed
    assert {path.name for path in (unpacked / "plugins").iterdir()} == _packages(repository)


def test_the_wheel_offers_the_entry_points_of_pyproject(wheel: Path, repository: Path) -> None:
    import tomllib

    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    written = ConfigParser(delimiters=("=",))
    written.optionxform = str  # type: ignore[assignment,method-assign]
    with zipfile.ZipFile(wheel) as archive:
        written.read_string(archive.read("kvcache_framework-0.1.0.dist-info/entry_points.txt").decode())
    wanted = {"console_scripts": project["scripts"], **project["entry-points"]}
    assert {group: dict(written[group]) for group in written.sections()} == wanted


def test_the_wheel_works_from_another_directory(installed: Path, tmp_path: Path) -> None:
    framework, builtin, count = run(installed, "-c", PROBE, cwd=tmp_path).split()
    assert Path(framework).is_relative_to(installed.parents[1]), framework
    assert Path(builtin).is_relative_to(installed.parents[1]), builtin
    assert count == "48"


def test_the_editable_install_exposes_the_checkout_and_nothing_else(unpacked: Path, tmp_path: Path) -> None:
    python = fresh_environment(tmp_path / "venv")
    run(*pip_install(python), "-e", unpacked, cwd=tmp_path)
    framework, builtin, _ = run(python, "-c", PROBE, cwd=tmp_path).split()
    assert Path(framework) == unpacked / "framework" / "__init__.py"
    assert Path(builtin) == unpacked / "plugins" / "framework_builtin" / "__init__.py"
    # Not "cannot be imported": the environment that lends its dependencies may hold such a package of its own.
    where = "import importlib.util as u, sys; print(u.find_spec(sys.argv[1]))"
    for name in ("conf", "plugins", "tests", "framework_native"):
        found = run(python, "-c", where, name, cwd=tmp_path)
        assert str(unpacked) not in found, f"the checkout's {name}/ became importable: {found}"
