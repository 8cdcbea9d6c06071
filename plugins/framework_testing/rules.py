"""What the kits share: their lists, saying that a rule is broken, plain facts, and answers of other processes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import unittest
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from framework.errors import FrameworkError, plugin_note
from framework.guard.boundary import Guard
from framework.guard.facts import checked_facts
from framework.registry.culprit import named
from framework_testing.driver import Violation, shortened

_SKIPPED = 77


def checks_of(module: Mapping[str, Any]) -> tuple[Callable[..., None], ...]:
    """The kit of a module, given as its `globals()`: the functions `check_*` in the order they stand there.

    Without those of the large part, `check_large_*`.
    """
    return tuple(check for check in _named(module, "check_") if check not in large_checks_of(module))


def large_checks_of(module: Mapping[str, Any]) -> tuple[Callable[..., None], ...]:
    """The large part of a kit: the functions `check_large_*`, of sizes that take many seconds."""
    return _named(module, "check_large_")


def _named(module: Mapping[str, Any], prefix: str) -> tuple[Callable[..., None], ...]:
    return tuple(check for name, check in module.items() if name.startswith(prefix))


def need(plugin: object, holds: bool, rule: str, seen: object = "") -> None:
    """Raise unless the rule holds.

    Raises:
        Violation: names the plugin's class.
    """
    if not holds:
        raise Violation(f"{type(plugin).__name__}: {rule}: {shortened(seen)}")


@contextmanager
def blamed(plugin: object) -> Iterator[None]:
    """What is raised here is this plugin's doing.

    Raises:
        Violation: names its class, and what was raised.
    """
    try:
        yield
    except Violation:
        raise
    except Exception as error:
        said = f"{error}" if isinstance(error, FrameworkError) else f"raised {error!r}"
        raise Violation(plugin_note(named(error)) or f"{type(plugin).__name__}: {said}") from error


def require_plain_facts(kind: str, plugin: Any) -> None:
    """Ask twice for its `facts`: names to texts and finite numbers, both times the same.

    Raises:
        Violation.
    """
    guard = Guard(kind, plugin)
    with blamed(plugin):
        first, second = (checked_facts(guard, plugin.facts()) for _ in range(2))
    need(plugin, first == second, "facts changed by being asked", f"{first}, then {second}")


def elsewhere(ask: Callable[..., str], make: Callable[[], Any], *given: Any, hash_seed: str = "0") -> str:
    """What `ask(make, *given)` answers in a process of its own. `ask` is a function of a module.

    Raises:
        Violation: `make` is not picklable (a class is, or a functools.partial of one), or the process failed.
        unittest.SkipTest: as `ask`.
    """
    try:
        job = pickle.dumps((sys.path, pickle.dumps((ask, make, given))))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Violation(f"make must be picklable (a class, or a functools.partial of one): {error}") from error
    code = "from framework_testing.rules import answer; answer()"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", code], input=job, capture_output=True, env=environment, timeout=280, check=False
    )
    tail = done.stderr.decode(errors="replace")[-1500:].strip()
    if done.returncode == _SKIPPED:
        raise unittest.SkipTest(tail.splitlines()[-1])
    if done.returncode:
        raise Violation(f"in another process: exit status {done.returncode} (-11 is a crash)\n{tail}")
    return done.stdout.decode()


def require_same_elsewhere(ask: Callable[..., str], make: Callable[[], Any], rule: str) -> None:
    """Compare `ask(make)` with itself asked again, and in a process where Python's hashes of text and bytes differ.

    Raises:
        Violation: they differ, or as `elsewhere`.
    """
    first = ask(make)
    need(make(), ask(make) == first, f"{rule} each time", first)
    other = elsewhere(ask, make, hash_seed="2" if os.environ.get("PYTHONHASHSEED") == "1" else "1")
    need(make(), other == first, f"{rule} in another process, where Python's hash(text) differs", f"{first}, {other}")


def answer() -> None:
    """Entry of the other process."""
    path, job = pickle.loads(sys.stdin.buffer.read())
    sys.path[:] = path  # where `make` was importable
    ask, make, given = pickle.loads(job)
    try:
        sys.stdout.write(ask(make, *given))
    except unittest.SkipTest as reason:
        sys.stderr.write(f"{reason}\n")
        sys.exit(_SKIPPED)
