"""Whether a backend is right at some shapes: asked before anything is timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from framework.guard.boundary import OUTSIDE, shown
from framework.interfaces.backend import AttentionSpec
from framework.testing.attention_cases import Case, build_problem
from framework.testing.attention_runs import Make, Verdict, judge, prepared, run_attention


@dataclass(frozen=True, slots=True)
class Gate:
    """What became of one spec: the worst verdict of all cases, and what was wrong, a sentence each."""

    num_cases: int
    worst: Verdict | None
    wrong: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Nothing was wrong."""
        return not self.wrong


def gate(make: Make, spec: AttentionSpec, device: str) -> Gate:
    """Run decode, chunks and mixed batches with page edges, empty rows and NaN in every unused slot against fp64.

    A backend that raises is wrong, as one that miscounts.
    """
    verdicts: list[Verdict] = []
    wrong: list[str] = []
    chosen = list(gate_cases(spec))
    for case in chosen:
        problem = build_problem(case, device)
        try:
            backend = prepared(make, spec, device)
            out, _ = run_attention(backend, problem)
        except OUTSIDE:
            raise
        except AssertionError as error:
            wrong.append(f"{case}: {error}")
        except BaseException as error:  # a plugin may fail in any way: it is named, and not timed
            wrong.append(f"{case}: raised {shown(error)}")
            continue
        verdict = judge(out, problem, backend.capabilities.lossy)
        verdicts.append(verdict)
        if not verdict.ok:
            wrong.append(str(verdict))
    worst = max(verdicts, key=lambda verdict: verdict.error / verdict.limit, default=None)
    return Gate(len(chosen), worst, tuple(wrong))


def gate_cases(spec: AttentionSpec) -> Iterator[Case]:
    """Two batches of few rows: each costs a slow simulator a program a row and head."""
    size = spec.block_size
    yield Case(spec, (1, size, 5 * size + 3, 0, 2 * size + 1), (1,) * 5, seed=1)
    yield Case(spec, (size + 1, 3 * size - 1, 2 * size + 2), (1, 1, size + 2), seed=2)
