"""Whatever a command is asked wrongly, or finds in its files, it ends in a sentence, never an internal error."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from command_line import command

HUGE = str(10**30)
LONG = "9" * 5000
SMALL = ("workload=no_sharing", "workload.num_requests=2", "workload.new_tokens=2", "run.progress=false",
         "run.check_requests=0", "run.dir=out")  # fmt: skip
REPLAY = ("mode=replay", "run.progress=false", "run.dir=out")
TRACE = ("workload=trace", "workload.path=good.jsonl")
KERNEL = ("mode=kernel", "backend=gather", "run.progress=false", "run.dir=out")
PROMPTS = ("workload=prompts", "run.progress=false", "run.check_requests=0", "run.dir=out")

GOOD = "".join(
    json.dumps({"timestamp": 100 * i, "input_length": 1000, "output_length": 2, "hash_ids": [0, i]}) + "\n"
    for i in range(6)
)
FILES = {
    "good.jsonl": GOOD,
    "empty.jsonl": "",
    "blank.jsonl": "\n\n",
    "zeros.jsonl": "\0" * 100,
    "deep.jsonl": "[" * 100_000,
    "huge_number.jsonl": GOOD.replace("1000", LONG),
    "huge_id.jsonl": GOOD.replace("[0, 3]", f"[0, {HUGE}]"),
    "nan.jsonl": GOOD.replace("100,", "NaN,"),
    "negative.jsonl": GOOD.replace("1000", "-1000"),
    "cut.jsonl": GOOD[:-20],
    "text.jsonl": "hello\n",
    "latin.jsonl": "",
    "header.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n",
    "bad.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,many,few\n",
    "not.gz": "not gzip at all",
    "not.jsonl.zst": "not zstd",
    "prompts_beam.jsonl": '{"prompt": "a", "beam_width": 2, "length_penalty": 1e308}\n',
    "prompts_surrogate.jsonl": '{"messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": "x"}\n',
    "prompts_deep.jsonl": '{"prompt": ' + "[" * 5000 + "]" * 5000 + "}\n",
    "module.py": "class NoPlugin:\n    pass\n",
    "broken.py": "def broken(:\n",
    "exits.py": "raise SystemExit(0)\n",
}

SERVE: list[tuple[str, ...]] = [
    ("workload.num_requests=1000000000000",), ("workload.new_tokens=-1",), ("workload.rate_per_s=nan",),
    (f"seed={LONG}",),
    ("cache.num_blocks=null", "cache.memory_fraction=1e-30"), ("cache.memory_fraction=0.5",),
    ("cache.block_size=1048576",), ("engine.cuda_graphs=true",),
    ("engine.tensor_parallel_size=1024",), ("device=quantum",), ("device=cuda:99",), ("device=meta",), ("device=",),
    ("model=random", "model.shape=qwen4"), ("model=checkpoint", "model.path=."), ("model=a/b/c/d",),
    ("model=",), ("model.dtype=float33",), ("eviction=optimum",), ("eviction=module.py:Nobody",),
    ("eviction=module.py:NoPlugin",), ("eviction=broken.py:Any",), ("eviction=exits.py:Any",), ("eviction=:x",),
    ("eviction=lru:",), ("hash=a.b.c:D",), ("allocator={name: 3}",),
    ("run.dir=/proc/nowhere",), ("run.dir=/dev/null/x",), ("run.dir=good.jsonl",), ("run.dir=" + "x" * 5000,),
    ("run.dir=.",), ("-m", "run.sweep=/tmp/x", "seed=1,2"), ("-m", "run.sweep=../x", "seed=1,2"),
    ("run.dir=",), ("run.dir=null",), ("run.name=\udcc3\udca9",), ("run.dir=a\0b",),
    ("tracker.name=3",), ("tracker=wandb", "tracker.mode=never"), ("+x.y.z=1",),
    ("cache.num_blocks=${cache.num_blocks}",), ("seed=${oc.env:NOWHERE_TO_BE_FOUND}",), ("'",), ("seed=[",),
    ("hydra.run.dir=/dev/null/x",), ("-cn", "nothing"),
    ("-m", "seed=range(0)"), ("-m", "seed=choice()"), ("-m", "run.sweep=/dev/null", "seed=1,2"),
    ("hydra/launcher=nothing", "-m", "seed=1,2"), ("-m", f"seed=range({HUGE})"),
    ("-m", "seed=interval(0,1)"), ("-m", "seed=range(0,9,0)"),
]  # fmt: skip
REPLAYS: list[tuple[str, ...]] = [
    *((*REPLAY, "workload=trace", f"workload.path={name}") for name in ("empty.jsonl", "cut.jsonl", "not.gz")),
    (*REPLAY, "workload=trace"), (*REPLAY, "workload=trace", "workload.path="),
    (*REPLAY, "workload=trace", "workload.path=."), (*REPLAY, "workload=trace", "workload.path=/dev/null"),
    (*REPLAY, *TRACE, "workload.format=nothing"), (*REPLAY, *TRACE, "workload.format=azure"),
    (*REPLAY, *TRACE, "workload.limit=0"), (*REPLAY, *TRACE, "workload.speed=nan"),
    (*REPLAY, *TRACE, f"workload.block_tokens={HUGE}"),
    (*REPLAY, *TRACE, f"replay.capacity={LONG}GiB"),
    (*REPLAY, *TRACE, "replay.capacity=4GiB", "replay.shape=none"),
    (*REPLAY, *TRACE, "replay.step_s=nan"),
    (*REPLAY, *TRACE, "executor=roofline", "replay.device=z80"), (*REPLAY, *TRACE, "replay.efficiency=2"),
    (*REPLAY, "workload=recording"), (*REPLAY, "workload=recording", "workload.path=good.jsonl"),
    (*REPLAY, "workload=recording", "workload.path=empty.jsonl"), (*REPLAY, "workload=chat", "workload.num_requests=0"),
]  # fmt: skip
KERNELS: list[tuple[str, ...]] = [
    ("mode.batch=[0]",), ("mode.batch=many",), (f"mode.batch=[{HUGE}]",),
    ("mode.heads=[8]",), ("mode.heads=[0/0/0]",), ("mode.heads=[7/2/64]",),
    (f"mode.heads=[{HUGE}/1/64]",), ("mode.heads=[a/b/c]",), ("mode.heads=[]",), ("mode.dtypes=[int1]",),
    ("mode.dtypes=[]",), ("mode.kv_dtype=[int1]",),
    ("replay.device=z80",), ("mode.lengths=[odd]",),
    ("backend=nothing",), ("device=quantum",), ("kernel=null",),
]  # fmt: skip
OTHERS: list[tuple[str, tuple[str, ...]]] = [
    *(("trace", ("describe", name)) for name in FILES if not name.startswith(("good", "prompts"))),
    ("trace", ()), ("trace", ("nothing",)), ("trace", ("describe",)), ("trace", ("describe", "nowhere.jsonl")),
    ("trace", ("describe", ".")), ("trace", ("describe", "good.jsonl", "--format", "nothing")),
    ("trace", ("convert", "good.jsonl", "--out", "good.jsonl")),
    ("trace", ("convert", "bad.csv", "--out", "made.jsonl")),
    ("trace", ("convert", "good.jsonl", "--out", "/dev/null/x")),
    ("trace", ("convert", "good.jsonl", "--out", "no/such/x.jsonl")),
    ("trace", ("fetch", "nothing")),
    ("curve", ()), ("curve", ("nowhere.jsonl",)), ("curve", ("empty.jsonl",)), ("curve", ("bad.csv",)),
    ("curve", ("header.csv",)), ("curve", ("good.jsonl", "--policies", "nothing")),
    ("curve", ("good.jsonl", "--nothing")), ("curve", ("deep.jsonl",)), ("curve", ("huge_id.jsonl",)),
    ("check", ()), ("check", ("module.py:NoPlugin",)),
    ("check", ("broken.py:X",)), ("check", ("exits.py:X",)), ("check", ("nowhere.py:X",)),
    ("check", ("lru", "k=3")), ("check", ("lru", "k")), ("check", ("lru", "--only", "zzz")),
    ("check", ("lru_k", "k=[")), ("check", (":",)), ("check", ("lru", "--timeout", "x")),
    ("check", ("gather", "--device", "quantum", "--only", "zero", "--no-cost")),
    ("check", ("lru", "--against", "nothing", "--only", "alike")),
    ("report", ()), ("report", ("nowhere",)), ("report", (".",)),
    ("report", ("good.jsonl",)), ("report", (".", "--metric", "nothing")),
    ("report", (".", "--to", "/dev/null/x")),
    ("search", ()), ("search", ("nothing",)), ("search", ("s", "eviction=lru")),
    ("search", ("s", "--trials", "2", "seed=interval(0,1)")),
    ("search", ("s", "--trials", "0", "eviction=lru,fifo")), ("search", ("s", "--metric", "", "eviction=lru,fifo")),
    ("search", ("/dev/null/x", "eviction=lru,fifo")), ("search", ("s", "eviction=lru,nothing")),
    ("wandb", ()), ("wandb", ("eviction=lru",)), ("wandb", ("eviction=lru,nothing",)),
    ("plugins", ("--kind", "nothing")), ("plugins", ("--nothing",)),
    ("new", ()),
]  # fmt: skip


@pytest.fixture
def filled(elsewhere: Path) -> Path:
    """A working directory with good and bad files."""
    for name, text in FILES.items():
        (elsewhere / name).write_text(text)
    (elsewhere / "latin.jsonl").write_bytes(b'{"timestamp": 1, "x": "\xff\xfe"}\n')
    return elsewhere


def ended(module: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit status and standard error of `python -m framework MODULE WORDS...`, in this process."""
    capsys.readouterr()
    try:
        status: Any = command(module)(words)
    except SystemExit as end:
        status = end.code
    return status, capsys.readouterr().err


def identify(case: Any) -> str:
    return " ".join(word if len(word) < 60 else f"{word[:50]}..." for word in case) if isinstance(case, tuple) else case


BASES = (SMALL, REPLAY, KERNEL, PROMPTS, ("workload=trace",))
SHARED_WORDS = frozenset(word for base in BASES for word in base)

SAYS: dict[tuple[str, ...], str] = {
    (f"seed={LONG}",): "value has 5000 digits",
    ("cache.num_blocks=null", "cache.memory_fraction=1e-30"): "cache.memory_fraction",
    ("model=random", "model.shape=qwen4"): "no model shape 'qwen4'",
    ("model.dtype=float33",): "dtype float33",
    ("run.dir=.",): "run.dir",
    ("-m", "run.sweep=/tmp/x", "seed=1,2"): "run.sweep is a folder's name below sweeps/",
    ("-m", "run.sweep=../x", "seed=1,2"): "run.sweep is a folder's name below sweeps/",
    ("-m", "seed=range(0)"): "no job",
    ("-m", "seed=choice()"): "choice()",
    ("-m", "run.sweep=/dev/null", "seed=1,2"): "/dev/null",
    ("run.dir=a\0b",): "run.dir=a",
    ("run.name=\udcc3\udca9",): "run.name",
    ("'",): "override",
    ("+x.y.z=1",): "unknown key 'x'",
    ("allocator={name: 3}",): "allocator={name: 3}: the allocator is chosen by its name",
    ("tracker.name=3",): "tracker must be a name",
    (*REPLAY, "workload=recording"): "workload.path has no value",
    (*REPLAY, "workload=trace"): "workload.path has no value",
    (*REPLAY, *TRACE, f"workload.block_tokens={HUGE}"): "workload.block_tokens (trace) must be",
    ("mode.heads=[7/2/64]",): "7 query heads",
    (*REPLAY, "workload=trace", "workload.path="): ".: a folder of no known trace format",
    (*REPLAY, "workload=trace", "workload.path=."): ".: a folder of no known trace format",
    (*REPLAY, *TRACE, "workload.format=azure"): "good.jsonl:1: header: no column TIMESTAMP",
}
"""What the sentence on a run must hold, where it is not the key, the value or the file of what was asked."""

OTHERS_SAY: dict[tuple[str, ...], str] = {
    ("trace",): "COMMAND", ("trace", "describe"): "FILE", ("trace", "describe", "."): "folder",
    ("curve",): "FILE", ("check",): "what", ("report",): "DIR", ("search",): "name, OVERRIDE",
    ("search", "nothing"): "OVERRIDE", ("wandb",): "OVERRIDE", ("new",): "name, --kind",
    ("check", "lru", "k"): "found 'k'", ("check", ":"): "Empty module name",
    ("search", "s", "eviction=lru"): "nothing to search", ("wandb", "eviction=lru"): "nothing to search",
    ("search", "s", "--metric", "", "eviction=lru,fifo"): "metric ''",
    ("search", "s", "eviction=lru,nothing"): "'nothing'", ("wandb", "eviction=lru,nothing"): "'nothing'",
    ("curve", "header.csv"): "header.csv holds 0 requests",
    ("check", "gather", "--device", "quantum", "--only", "zero", "--no-cost"): "'quantum'",
    ("check", "lru", "--against", "nothing", "--only", "alike"): "'nothing'",
    ("trace", "describe", "good.jsonl", "--format", "nothing"): "no trace format 'nothing'",
    ("trace", "convert", "good.jsonl", "--out", "/dev/null/x"): "/dev/null/x",
    ("check", "lru", "k=3"): "option 'k'",
    ("trace", "convert", "good.jsonl", "--out", "no/such/x.jsonl"): "no/such/x.jsonl",
    ("curve", "good.jsonl", "--policies", "nothing"): "'nothing'", ("curve", "good.jsonl", "--nothing"): "--nothing",
    ("check", "lru_k", "k=["): "'k=['", ("report", ".", "--metric", "nothing"): "no run below .",
    ("report", ".", "--to", "/dev/null/x"): "no run below .",
    ("search", "/dev/null/x", "eviction=lru,fifo"): "/dev/null/x",
}  # fmt: skip


def culprits(words: tuple[str, ...]) -> list[str]:
    """The key, the file or the value of these words; the sentence must name one of them."""
    own = [word for word in words if word not in SHARED_WORDS]
    files = [word.partition("=")[2] for word in own if word.partition("=")[2] in FILES]
    if files and files != ["good.jsonl"]:
        return files
    own = [word for word in own if word not in TRACE] or own
    found: list[str] = []
    for word in own:
        key, equals, value = word.partition("=")
        key, value = key.lstrip("+-"), value.strip("[]")
        found += [text for text in (key if equals else word, value[:50]) if len(text) >= 3 and "/m" not in text]
    return found


@pytest.mark.parametrize(
    "words",
    [
        *((*SMALL, *words) for words in SERVE),
        *((*PROMPTS, f"workload.path={name}") for name in FILES if name.startswith("prompts") or name == "deep.jsonl"),
        *REPLAYS,
        *((*KERNEL, *words) for words in KERNELS),
    ],
    ids=identify,
)
@pytest.mark.filterwarnings("ignore")
def test_a_bad_run_ends_in_a_sentence_on_what_is_wrong(
    words: Any, filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = next((words[len(base) :] for base in (SMALL, KERNEL) if words[: len(base)] == base), words)
    wanted = SAYS.get(own) or SAYS.get(words)
    if "-m" in words:
        words = tuple(word for word in words if word != "run.dir=out")  # a sweep has none
    _ends_in_a_sentence("run", words, capsys, [wanted] if wanted else culprits(words))


@pytest.mark.parametrize(("module", "words"), OTHERS, ids=identify)
@pytest.mark.filterwarnings("ignore")
def test_a_bad_command_ends_in_a_sentence_on_what_is_wrong(
    module: str, words: Any, filled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = OTHERS_SAY.get((module, *words))
    named = [word for word in words if word in FILES]
    _ends_in_a_sentence(
        module, words, capsys, [wanted] if wanted else named or [words[0]] * (len(words) == 1) or culprits(words[1:])
    )
    assert (filled / "good.jsonl").read_text() == GOOD


def _ends_in_a_sentence(module: str, words: Any, capsys: pytest.CaptureFixture[str], wanted: list[str]) -> None:
    start = time.monotonic()
    status, err = ended(module, words, capsys)
    assert status in (1, 2), (status, err)
    assert "internal error" not in err, err
    assert "Traceback" not in err, err
    assert err.strip(), "it says nothing"
    assert time.monotonic() - start < 60, "it thinks for long about what cannot be"
    assert any(text in err for text in wanted), f"names none of {wanted}: {err}"
    assert not re.search(r"\b(\w+) '[^']*': \1\.", err), f"names the {module} twice: {err}"
