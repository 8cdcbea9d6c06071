"""Every error the laboratory raises on purpose. Each says what was asked, what was found and what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any


class FrameworkError(Exception):
    """Base of all errors below. Raised before anything changed, unless an error says otherwise.

    Attributes:
        exit_status: of a command that it ends: 2 for an invalid command, configuration or input; 1 for a run that
            failed. Declared here once, on each class; see `framework.cli.exit`.
    """

    exit_status: int = 1


class Interruption(BaseException):
    """The work is ended from outside, by a signal or the watchdog: no plugin's failure."""


class InvalidTokens(FrameworkError, ValueError):
    """Token ids that are no ids: floats, booleans, negative, 2**31 and up, or not one-dimensional."""

    exit_status = 2


class InvalidArgument(FrameworkError, ValueError):
    """A number or a choice outside its range, found before any state changed."""

    exit_status = 2


class OutOfBlocks(FrameworkError):
    """The pool has too few blocks for this call. Nothing changed: preempt a request, or wait for one to end."""


class OutOfMemory(FrameworkError, MemoryError):
    """The device has too little memory for the KV pool; with the bytes asked and the bytes free."""


class UnknownRequest(FrameworkError, KeyError):
    """No table under this id: never allocated, or already freed."""

    def __str__(self) -> str:
        return Exception.__str__(self)


class DuplicateRequest(FrameworkError):
    """This request id holds a table already."""


class StaleHit(FrameworkError):
    """The pool changed since this Hit was looked up. Look it up again, then allocate."""


class InvariantViolation(FrameworkError):
    """`check()` found an invariant broken. Lists each by its code; always a bug in the component that it names.

    The text ends with where the codes are defined: docs/invariants.md has a section for each.
    """

    def __str__(self) -> str:
        text = super().__str__()
        codes = dict.fromkeys(re.findall(r"\b([A-Z]\d+): ", text))
        where = ", ".join(f"docs/invariants.md#{code.lower()}" for code in codes)
        return f"{text} (see {where})" if where else text


class PluginError(FrameworkError):
    """A plugin answered what its contract forbids: the text names the plugin, the method and the rule."""


class StoreFailed(FrameworkError):
    """A tier's store could not keep or read a block, with the reason. The block is a miss; the run goes on."""


class TimedOut(FrameworkError, TimeoutError):
    """The run took longer than it may, and was ended; says where it was."""


class NoCandidate(FrameworkError):
    """An eviction policy was asked for a victim and holds no candidate."""


class Unsupported(FrameworkError):
    """Outside what a component declares it can do. Nothing was written."""

    exit_status = 2


class BackendUnavailable(FrameworkError):
    """The chosen backend cannot run this model on this device; lists the reasons and what would work."""

    exit_status = 2


class UnknownPlugin(FrameworkError, LookupError):
    """No installed plugin of that kind and name."""

    exit_status = 2


class DuplicatePlugin(FrameworkError):
    """Two distributions offer the same name of the same kind, and it was chosen."""

    exit_status = 2


class InvalidPlugin(PluginError):
    """The chosen class is no plugin of its kind: another base class, abstract methods, or a constructor that asks for
    what is not given. Found before it is made."""

    exit_status = 2


class PluginImportError(FrameworkError, ImportError):
    """The chosen plugin's module fails to import."""

    exit_status = 2


class ConfigError(FrameworkError, ValueError):
    """A configuration that cannot be run: names the key, the value found and what is allowed."""

    exit_status = 2


class EngineInterrupted(FrameworkError):
    """A step was interrupted, or is running: what the engine holds cannot be trusted until it is reset."""


class RequestFailed(FrameworkError):
    """A request whose tokens were being streamed has failed; says why. Other requests are unaffected."""


class ModelError(FrameworkError):
    """A checkpoint or tokenizer that is missing, incomplete or of a family that is not supported."""

    exit_status = 2


class RankError(FrameworkError):
    """Another rank of a tensor-parallel run died, raised or kept the others waiting; names the rank and its error."""


class WorkloadError(FrameworkError, ValueError):
    """A prompt file or trace that cannot be read: names file, line and field."""

    exit_status = 2


class RunDirectoryError(FrameworkError, OSError):
    """A run directory that cannot be written, or that holds what may not be replaced."""

    exit_status = 2

    def __str__(self) -> str:
        return str(self.args[-1]) if self.args else ""


class RunDirectoryInUse(RunDirectoryError):
    """Another live run holds the run directory; names its process and machine."""


class Interrupted(KeyboardInterrupt):
    """The process was asked to end by SIGTERM or SIGHUP; like Ctrl-C, no `Exception`.

    Attributes:
        number: of the signal.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class PluginNote(str):
    """The sentence that names distribution, class and method of a plugin, as an exception's note or its text."""

    __slots__ = ()


def plugin_note(error: BaseException) -> str:
    """The PluginNote of an exception; "" where it has none."""
    texts = (*getattr(error, "__notes__", ()), *error.args)
    return next((text for text in texts if isinstance(text, PluginNote)), "")


def shown(value: Any) -> str:
    """A value as an error shows it: its `repr`, cut where it is long; the digits of a large integer, where it was read
    as a float."""
    try:
        large = isinstance(value, float) and 1e16 <= abs(value) < 1e22
        text = f"{value:.0f}" if large else repr(value)
    except Exception:  # an int of more digits than Python prints, a list that holds itself, anybody's __repr__
        return f"a value of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:77]}..."


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`"; did you mean 'x'?"` for the nearest choice, or nothing when none is near."""
    near = difflib.get_close_matches(str(word), [str(choice) for choice in choices], n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def listing(choices: Iterable[str]) -> str:
    """`a, b, c`, or `none`."""
    return ", ".join(choices) or "none"
