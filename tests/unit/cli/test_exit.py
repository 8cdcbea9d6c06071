"""How commands end: one sentence, and the status that the error's class declares."""

from __future__ import annotations

import errno
import inspect
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from processes import wait_until, written

from framework import errors
from framework.cli.exit import FAILED, INVALID, command, describe, exit_status, interrupts, sentence, status_of
from framework.errors import ConfigError, FrameworkError, Interrupted, PluginError, RunDirectoryError, WorkloadError


def ended(error: BaseException) -> int:
    @command
    def main() -> int:
        raise error

    return main()


def test_every_error_class_ends_a_command_with_1_or_2() -> None:
    classes = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, FrameworkError)]
    assert {cls.exit_status for cls in classes} == {FAILED, INVALID}
    assert {cls.__name__ for cls in classes if cls.exit_status == FAILED} >= {
        "FrameworkError", "OutOfBlocks", "OutOfMemory", "UnknownRequest", "DuplicateRequest", "StaleHit", "PluginError",
        "InvariantViolation", "TimedOut", "NoCandidate", "RankError",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (ConfigError("cache.x is unknown"), 2, "ConfigError: cache.x is unknown"),
        (WorkloadError("trace.jsonl:3: no length"), 2, "WorkloadError: trace.jsonl:3: no length"),
        (PluginError("eviction Mine.victim raised"), 1, "PluginError: eviction Mine.victim raised"),
        (RunDirectoryError(errno.ENOTDIR, "x is no folder"), 2, "x is no folder"),
        (RunDirectoryError(errno.ENOSPC, "x cannot be written"), 1, "x cannot be written"),
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "nowhere"),
            2,
            "nowhere: No such file or directory",
        ),
        (ZeroDivisionError("division by zero"), 1, "internal error: ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), 130, "interrupted by Ctrl-C"),
        (Interrupted(15), 143, "interrupted by SIGTERM"),
        (Interrupted(1), 129, "interrupted by SIGHUP"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_an_error_ends_a_command_with_a_sentence_and_its_status(
    error: BaseException, status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(error) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert err.count("\n") == 1, err


def test_tracebacks_are_there_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ConfigError):
        ended(ConfigError("no"))


def test_an_error_of_several_lines_is_one_sentence() -> None:
    assert sentence(ConfigError("a\n  b")) == "ConfigError: a b"
    assert status_of(ConfigError("a")) == INVALID


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_interrupts_once_and_the_handlers_are_put_back(number: signal.Signals, status: int) -> None:
    before = signal.signal(number, signal.SIG_DFL)
    try:
        with pytest.raises(Interrupted) as caught, interrupts():
            _killed_twice(number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, before)
    assert (exit_status(caught.value), describe(caught.value)) == (status, number.name)


def _killed_twice(number: signal.Signals) -> None:
    try:
        os.kill(os.getpid(), number)
    finally:
        os.kill(os.getpid(), number)  # must not disturb the writing of what there is


def test_a_signal_that_is_ignored_stays_ignored_as_under_nohup() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


WORKERS = """
import os, sys, time
from framework.cli.exit import end_with_parent

def sleep(number):
    with open(f"{sys.argv[1]}/{number}", "w") as file:
        file.write(str(os.getpid()))
    parent = os.getppid()
    while sys.argv[2] == "late" and os.getppid() == parent:
        time.sleep(0.01)  # as a worker that is still importing when its parent is killed
    end_with_parent()
    time.sleep(300)

if __name__ == "__main__":
    end_with_parent()  # of a process that is nobody's worker nothing
    from %s
    for number in range(2):
        pool.submit(sleep, number)
    time.sleep(300)
"""
POOLS = {
    "joblib": "joblib.externals.loky import get_reusable_executor\n    pool = get_reusable_executor(2)",
    "spawn": "concurrent.futures import ProcessPoolExecutor\n    from multiprocessing import get_context\n"
             "    pool = ProcessPoolExecutor(2, mp_context=get_context('spawn'))",
}  # fmt: skip


@pytest.mark.parametrize("begun", ["before", "late"])
@pytest.mark.parametrize("name", POOLS)
def test_no_worker_outlives_a_parent_that_is_killed(tmp_path: Path, name: str, begun: str) -> None:
    if name == "joblib":
        pytest.importorskip("joblib")
    (tmp_path / "parent.py").write_text(WORKERS % POOLS[name])
    command = [sys.executable, tmp_path / "parent.py", tmp_path, begun]
    parent = subprocess.Popen(command, start_new_session=True)
    try:
        wait_until(lambda: all(written(tmp_path / number) for number in "01"), parent)
        workers = [int((tmp_path / number).read_text()) for number in "01"]
        parent.kill()
        parent.wait()
        wait_until(lambda: not any(_runs(worker) for worker in workers))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_another_thread_leaves_signals_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def work() -> None:
        with interrupts():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
