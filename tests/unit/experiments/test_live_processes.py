"""What experiments/live starts ends with it: servers, and processes of ours that start servers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

VLLM = """
import os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *words):
        pass

core = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])  # vLLM's engine core
print(os.getpid(), core.pid, flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Healthy).serve_forever()
"""
SERVES = """
import sys, time
from contextlib import ExitStack
from pathlib import Path
from experiments.live.server import serving

with ExitStack() as servers:
    for log in sys.argv[1:]:
        servers.enter_context(serving(Path("model"), Path(log), ()))
        print(log, flush=True)
    Path("all").touch()
    time.sleep(600)
"""
ASKS_A_CHILD = "import sys; from experiments.shared import output_of; output_of([sys.executable, *sys.argv[1:]])"


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize(
    ("through", "number"),
    [("one", signal.SIGINT), ("several", signal.SIGTERM), ("a child", signal.SIGKILL),
     *(pytest.param(*pair, marks=pytest.mark.slow)
       for pair in (("one", signal.SIGTERM), ("one", signal.SIGKILL), ("several", signal.SIGINT),
                    ("several", signal.SIGKILL), ("a child", signal.SIGTERM), ("a child", signal.SIGINT)))],
)  # fmt: skip
def test_servers_end_with_what_started_them(
    through: str, number: signal.Signals, tmp_path: Path, repository: Path
) -> None:
    package = tmp_path / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text(VLLM)
    (tmp_path / "serves.py").write_text(SERVES)
    logs = ["1.log", "2.log"] if through == "several" else ["1.log"]
    command = ["serves.py", *logs] if through != "a child" else ["-c", ASKS_A_CHILD, "serves.py", *logs]
    environment = {**os.environ, "PYTHONPATH": f"{repository}{os.pathsep}{tmp_path}"}
    with subprocess.Popen(
        [sys.executable, *command], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        while not (tmp_path / "all").exists():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    assert process.returncode != 0, said
    started = [int(pid) for log in logs for pid in (tmp_path / log).read_text().split()[:2]]
    left, end = started, time.monotonic() + 60
    while left and time.monotonic() < end:  # after SIGKILL others end them
        left = [pid for pid in started if _alive(pid)]
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == [], said
