"""Random command lines over the whole configuration, good and bad, each run in this process and judged.

`python tests/cli/config_fuzz.py NUMBER [SEED]` looks for longer than the tests do.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import shutil
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from framework import registry
from framework.config.config import Config
from framework.config.sections import SECTIONS
from framework.config.setting import settings_of
from framework.registry.construction import own_options
from framework.run import call

NUMBERS = ("0", "1", "2", "3", "5", "64", "-1", "0.5", "1.0", "1e-3", "-0.0", "1e308", "1e400", "nan", "inf", "-inf",
           str(2**31), str(2**63), str(10**30), "9" * 5000, "0x10", "1_0", "٣")  # fmt: skip
TEXTS = ("x", "''", "null", "true", "false", "[]", "{}", "[1,2]", "[x]", "{a: 1}", "auto", "lru", "none", "é", "'a b'",
         "'{'", "'$x'", "${seed}", "${nothing.there}", "???", "'\\ud800'", "\udcc3", "a\0b", "x" * 300, "'a,b'",
         "float16", "int8", "h100", "25%", "4GiB", "good.jsonl", "bad.jsonl", ".", "mine", "nowhere.jsonl",
         "../x", "own.py:Own", "own.py:Nobody", "1/1/16", "[1/1/16]", "1,2", "glob(*)", "range(2)")  # fmt: skip
FOLDERS = ("out", "mine", "earlier", ".", "''", "null", "good.jsonl", "a/b", "é", "/dev/null", "/dev/null/x", "x" * 300)
SLOW = frozenset({"engine.compile", "engine.tensor_parallel_size", "run.sweep", "run.dir", "run.report"})
"""Settings that are left alone: torch.compile and ranks take long, folders are drawn apart."""
PLUGINS = ("allocator", "eviction", "hash", "tiering")
WORKLOADS = ("no_sharing", "shared_prefix", "chat", "trace", "recording", "prompts")
OWN = "from framework_builtin.eviction.lru import Lru\n\n\nclass Own(Lru):\n    pass\n"
LINE = {"timestamp": 0, "input_length": 1000, "output_length": 2, "hash_ids": [0, 1]}
SENTENCE = re.compile(r"^(job \d+ \(.*\): )?([A-Z]\w+: .|\d+ requests |all \d+ requests |interrupted by )"
                      r"|^/?[\w./]+: [A-Z]|jobs (failed|are)|no effect in|the run's status is")  # fmt: skip


class Fuzz:
    """Command lines drawn from a seed, run in a folder of their own.

    Args:
        folder: empty; the working directory of every run.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.settings = {
            key: default
            for section in (Config, *SECTIONS.values())
            for key, default, _ in settings_of(section)
            if key not in SLOW
        }
        self.options = {
            (kind, name): [parameter.name for parameter in own_options(registry.load(kind, name)).parameters]
            for kind in (*PLUGINS, "workload")
            for name in registry.names(kind)
        }
        for name, text in (("good.jsonl", json.dumps(LINE) + "\n"), ("bad.jsonl", "{\n"), ("own.py", OWN)):
            (folder / name).write_text(text)
        self.mine = folder / "mine"
        self.mine.mkdir()
        (self.mine / "notes.txt").write_text("mine")
        (self.mine / "config.yaml").write_text("mine: true\n")

    def words(self) -> list[str]:
        """One command line: a small run of some mode, and up to four changes to it."""
        draw = self.random
        words = [*draw.choice(_MODES), "run.progress=false", "run.timeout_s=20", "run.stall_timeout_s=10"]
        words.append(f"run.dir={draw.choice(FOLDERS) if draw.random() < 0.3 else 'out'}")
        for _ in range(draw.randrange(5)):
            words.append(self._change())
        if draw.random() < 0.1:
            words = [word for word in words if not word.startswith("run.dir=")]
            words += ["-m", "run.sweep=s", f"seed={draw.choice(('0,1', '1,x', 'range(2)', '0'))}"]
        if draw.random() < 0.03:
            words.append(draw.choice(("--cfg", "-cn", "--version", "--nothing", "=", "'", "a", "~seed", "+")))
        return words

    def _change(self) -> str:
        draw, kind = self.random, self.random.random()
        sign = draw.choice(("", "", "", "", "+", "++", "~"))
        if kind < 0.5:
            key = draw.choice(sorted(self.settings))
            value = self._likely(self.settings[key]) if draw.random() < 0.5 else self._value()
            return f"{sign}{key}={value}"
        group = draw.choice((*PLUGINS, "workload"))
        if kind < 0.7:
            names = sorted(registry.names(group)) if group != "workload" else WORKLOADS
            return f"{sign}{group}={draw.choice(names) if draw.random() < 0.8 else self._value()}"
        if kind < 0.95:
            options = self.options[draw.choice(sorted(key for key in self.options if key[0] == group))]
            return f"{sign}{group}.{draw.choice(options or ['x'])}={self._value()}"
        return f"{draw.choice((*SECTIONS, *PLUGINS, 'tiers', 'model', 'x.y', 'hydra.job.chdir'))}={self._value()}"

    def _likely(self, default: Any) -> str:
        """A value that a setting of this default may well take."""
        if isinstance(default, bool):
            return self.random.choice(("true", "false"))
        if isinstance(default, (int, float)):
            return self.random.choice(("1", "2", "3", "16", "32"))
        return self.random.choice(("null", "null", "2", "auto", str(default) if isinstance(default, str) else "[1]"))

    def _value(self) -> str:
        return self.random.choice(NUMBERS if self.random.random() < 0.6 else TEXTS)

    def run(self, words: Sequence[str]) -> int:
        """Run one command line; its exit status.

        Raises:
            AssertionError: it ended in another way than it may, or something was lost.
        """
        earlier = self._earlier()
        out, err = io.StringIO(), io.StringIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            warnings.simplefilter("ignore")
            status: Any = call(words)
        said = err.getvalue()
        assert status in (0, 1, 2), (status, said)
        for bad in ("internal error", "Traceback (most recent"):
            assert bad not in said + out.getvalue(), said
        assert status == 0 or any(SENTENCE.search(line) for line in said.splitlines()), f"no sentence: {said!r}"
        self._require_nothing_lost(status, earlier)
        return int(status)

    def _earlier(self) -> dict[str, bytes]:
        """A finished run in `earlier`, and no other output."""
        for path in self.folder.iterdir():
            if path.name not in ("good.jsonl", "bad.jsonl", "own.py", "mine"):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        folder = self.folder / "earlier"
        folder.mkdir()
        (folder / "result.json").write_text('{"status": "ok", "mode": "serve", "hit_rate": 0.25}\n')
        (folder / "config.yaml").write_text("mode: serve\n")
        return {path.name: path.read_bytes() for path in folder.iterdir()}

    def _require_nothing_lost(self, status: int, earlier: dict[str, bytes]) -> None:
        assert {path.name: path.read_text() for path in self.mine.iterdir()} == {
            "notes.txt": "mine", "config.yaml": "mine: true\n",
        }, "files of the user's own are gone"  # fmt: skip
        assert (self.folder / "good.jsonl").read_text() == json.dumps(LINE) + "\n", "the trace is gone"
        found = {name: path.read_bytes() for name in earlier if (path := self.folder / "earlier" / name).exists()}
        if status == 2:
            assert found == earlier, "a run that cannot start took an earlier result with it"
        assert "result.json" in found, "an earlier result is gone and no other is there"
        for path in self.folder.rglob("result.json"):
            assert json.loads(path.read_text(encoding="utf-8"))["status"] in ("ok", "failed"), path
        assert not list(self.folder.rglob("lock")), "a lock is left"
        assert not list(self.folder.rglob("*.tmp")), "a half-written file is left"


_SMALL = ("workload=no_sharing", "workload.num_requests=2", "workload.new_tokens=2", "run.check_requests=0")
_TRACE = ("mode=replay", "workload=trace", "workload.path=good.jsonl", "cache.num_blocks=64")
_MODES: tuple[tuple[str, ...], ...] = (
    (*_SMALL, "cache.num_blocks=64"),
    (*_SMALL, "mode=replay", "cache.num_blocks=64"),
    (*_TRACE, "cache.block_size=512"),
    (*_TRACE, "cache.block_size=512", "executor=roofline"),
    (*_TRACE, "cache.block_size=512", "executor=cache_only"),
    (*_TRACE, "cache.block_size=512", "executor=cache_only", "tiering=on_eviction",
     "tiers=[{store: host, num_blocks: 8}]"),
    ("mode=kernel", "backend=gather", "kernel.batch=[1]", "kernel.context=[32]", "kernel.prefill=[16]",
     "kernel.heads=[2/1/16]", "kernel.budget_s=0.01"),
)  # fmt: skip


def search(
    folder: Path, number: int, seed: int, slowest_s: float = 30
) -> tuple[dict[int, int], list[tuple[list[str], str]]]:
    """How often each exit status came in so many command lines, and those that ended in another way.

    Args:
        slowest_s: a command line that takes longer is a fault too.
    """
    os.chdir(folder)
    fuzz, statuses, faults = Fuzz(folder, seed), dict[int, int](), list[tuple[list[str], str]]()
    for _ in range(number):
        words = fuzz.words()
        start = time.monotonic()
        try:
            status = fuzz.run(words)
        except BaseException as error:
            faults.append((words, f"{type(error).__name__}: {str(error)[:2000]}"))
            if isinstance(error, KeyboardInterrupt):
                break
        else:
            statuses[status] = statuses.get(status, 0) + 1
        if time.monotonic() - start > slowest_s:
            faults.append((words, f"took {time.monotonic() - start:.0f} s"))
    return statuses, faults


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as found:
        totals, wrong = search(Path(found), int(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else 0)
        os.chdir("/")
    for line in wrong:
        sys.stdout.write(f"{line[0]!a}\n    {line[1]!a}\n")
    sys.stdout.write(f"exit statuses {totals}, {len(wrong)} faults\n")
    sys.exit(bool(wrong))
