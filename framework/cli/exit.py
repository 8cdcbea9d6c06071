"""How every command ends: its exit status, its last sentence, and who decides both.

0: done. 1: a run failed. 2: invalid command, configuration or input. 128 + N: interrupted by signal N (130 Ctrl-C,
143 SIGTERM, 129 SIGHUP). An error's status is declared on its class in `framework.errors`.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, ParamSpec

from framework.errors import ConfigError, FrameworkError, Interrupted, Unsupported, WorkloadError, plugin_note
from framework.files.atomic import is_disk_failure

DONE, FAILED, INVALID = 0, 1, 2
FULL_ERROR = "HYDRA_FULL_ERROR"
"""Environment variable that asks for tracebacks, of Hydra and of us."""
_LOOK_S = 0.2
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
_ABOUT_INPUT = (ConfigError, WorkloadError, Unsupported)
"""By which a plugin says that it was asked for what cannot be had; what else leaves one is its failure."""
P = ParamSpec("P")


def command(main: Callable[P, int]) -> Callable[P, int]:
    """A command's main function whose errors end as one sentence on standard error and the status of their class."""

    @functools.wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            require_working_directory()
            return main(*args, **kwargs)
        except BrokenPipeError:
            raise  # `| head` has read enough: see `exit_with`
        except KeyboardInterrupt as error:
            complain(f"interrupted by {describe(error)}")
            return exit_status(error)
        except Exception as error:
            if full_error() or output_failed(error):
                raise
            complain(sentence(error))
            return status_of(error)

    return run


def require_working_directory() -> None:
    """Refuse to begin where there is no working directory any more: every relative path would fail in its own way.

    Raises:
        ConfigError: it was removed.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError("the working directory was removed; cd to one that exists") from error


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its status; a reader that has read enough, such as `head`, is no failure."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell, as by `>&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        with interrupts():
            status = main()
            sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        status = DONE
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # raised by rich for a closed pipe
            raise
        drop_output()
        status = DONE
    except KeyboardInterrupt as error:
        complain(f"interrupted by {describe(error)}")
        status = exit_status(error)
    except OSError as error:
        complain(f"standard output cannot be written: {error.strerror}")
        drop_output()
        status = FAILED
    sys.exit(status)


def status_of(error: BaseException) -> int:
    """The exit status of a command that this error ends."""
    if is_disk_failure(error) or (plugin_note(error) and not isinstance(error, _ABOUT_INPUT)):
        return FAILED
    if isinstance(error, FrameworkError):
        return error.exit_status
    return INVALID if _is_about_a_path(error) else FAILED


def sentence(error: BaseException) -> str:
    """An error as one line: what was asked, what was found, what to do; of an error that nobody expected, its type.

    Of one that left a plugin the line names that: see `framework.registry.culprit`.
    """
    note = plugin_note(error)
    text = " ".join((note or str(error)).split())
    if note and not isinstance(error, FrameworkError):
        return f"{text}; set {FULL_ERROR}=1 for the traceback"
    if isinstance(error, FrameworkError) and isinstance(error, OSError):
        text = " ".join(str(error.strerror or text).split())  # no "[Errno 20]"
    if isinstance(error, FrameworkError):
        return f"{type(error).__name__}: {text}"
    if isinstance(error, OSError) and _is_about_a_path(error):
        return f"{error.filename}: {error.strerror}"
    if is_disk_failure(error):
        return text
    return f"internal error: {type(error).__name__}: {text}; set {FULL_ERROR}=1 for the traceback"


def complain(text: str) -> None:
    """One line on standard error, whatever characters it can show."""
    encoding = sys.stderr.encoding or "ascii"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=sys.stderr, flush=True)  # noqa: T201


def full_error() -> bool:
    """Whether the user asked for tracebacks."""
    return os.environ.get(FULL_ERROR) == "1"


@functools.cache
def end_with_parent() -> None:
    """In a worker process: however its parent ends, SIGKILL included, it does not outlive it. Elsewhere nothing."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == parent.pid:  # a process whose parent is gone, perhaps before this call, gets another
            time.sleep(_LOOK_S)
        os._exit(FAILED)

    threading.Thread(target=watch, name="parent's end", daemon=True).start()


def drop_output() -> None:
    """Nobody reads on: keep the interpreter from complaining at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def output_failed(error: BaseException) -> bool:
    """Whether `error` is a full disk behind no file: that of standard output, as `> /dev/full` has it."""
    return type(error) is OSError and error.filename is None and is_disk_failure(error)


def _is_about_a_path(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.filename is not None


@contextmanager
def interrupts() -> Iterator[None]:
    """In the main thread, raise Interrupted at SIGTERM and SIGHUP, once; more of them do not disturb the writing.

    A signal that somebody else handles, or that is ignored (nohup), stays as it is; nested use changes nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    taken = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    came = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if not came:
            came = True
            raise Interrupted(number)

    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def exit_status(error: BaseException) -> int:
    """The status of a process ended by Ctrl-C or a signal, as shells count: 130, or 128 and the signal's number."""
    return 128 + (error.number if isinstance(error, Interrupted) else signal.SIGINT)


def describe(error: BaseException) -> str:
    """What interrupted: "SIGTERM", "SIGHUP" or "Ctrl-C"."""
    return signal.Signals(error.number).name if isinstance(error, Interrupted) else "Ctrl-C"
