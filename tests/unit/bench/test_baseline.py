"""The benchmark gate: slower in every try fails, slower once does not."""

import importlib.util
import json

import pytest


@pytest.fixture
def baseline(repository, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = importlib.util.spec_from_file_location("baseline", repository / "tests" / "bench" / "baseline.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / ".benchmarks").mkdir()
    rows = [{"fullname": name, "stats": {"min": 1.0, "median": 1.1}} for name in ("a", "b")]
    (tmp_path / ".benchmarks" / "here.json").write_text(json.dumps({"benchmarks": rows}))
    return module


def runs_of(*minima):
    """A stand-in for pytest: the least times of `a` in successive runs; `b` never changes."""
    left = list(minima)

    def run(arguments, to):
        return {"a": {"min": left.pop(0), "median": 1.2}, "b": {"min": 1.0, "median": 1.1}}

    return run


@pytest.mark.parametrize(
    ("minima", "status"),
    [((1.05,), 0), ((1.3, 1.2, 1.02), 0), ((1.3, 1.2, 1.15), 1), ((0.5,), 0)],
    ids=["within the limit", "noise twice", "slower each time", "faster"],
)
def test_only_what_is_slower_in_every_try_fails(baseline, monkeypatch, capsys, minima, status):
    monkeypatch.setattr(baseline, "run", runs_of(*minima))
    assert baseline.compare("here", 10.0, 3, []) == status
    assert ("SLOWER" in capsys.readouterr().out) == bool(status)


def test_without_a_baseline_it_says_how_to_make_one(baseline):
    with pytest.raises(SystemExit, match="save elsewhere"):
        baseline.compare("elsewhere", 10.0, 3, [])
