"""What may happen to an allocator: random histories, small enough to shrink and to read."""

from __future__ import annotations

from typing import Any

from framework.errors import Unsupported
from framework.testing.driver import Driver
from framework.types import Namespace

Step = tuple[Any, ...]
"""A step's name and its small numbers; requests are picked by position, so that any step suits any state."""

NAMESPACES = (Namespace(), Namespace(salt="x"))

WRONG_CALLS = (
    "free", "extend", "commit", "truncate", "table", "fork", "duplicate", "fork onto itself", "commit too far",
    "fork too far", "truncate below 0", "extend below 0", "commit less",
)  # fmt: skip


def hypothesis() -> Any:
    """The hypothesis package, which only the random checks need.

    Raises:
        Unsupported: it is not installed.
    """
    try:
        import hypothesis
        import hypothesis.strategies
    except ModuleNotFoundError as error:
        raise Unsupported("the random checks need hypothesis: pip install 'kvcache-framework[test]'") from error
    return hypothesis


def steps(max_size: int = 14) -> Any:
    """A strategy of histories: lists of `Step`."""
    st = hypothesis().strategies
    pick, few = st.integers(0, 3), st.integers(0, 4)
    tokens = st.lists(st.integers(0, 1), max_size=9)
    admit = st.tuples(st.just("admit"), tokens, st.integers(0, 1))
    compute = st.tuples(st.just("compute"), pick, st.integers(1, 9), st.booleans(), st.booleans())
    step = st.one_of(
        admit,
        compute,
        st.tuples(st.just("finish"), pick),
        admit,
        compute,
        st.tuples(st.just("append"), pick, st.lists(st.integers(0, 1), min_size=1, max_size=4)),
        st.tuples(st.just("free"), pick),
        st.tuples(st.just("fork"), pick, few),
        st.tuples(st.just("truncate"), pick, few),
        st.tuples(st.just("preempt"), pick),
        st.tuples(st.just("remember"), tokens, st.integers(0, 1)),
        st.tuples(st.just("use remembered")),
        st.tuples(st.just("wrong"), st.sampled_from(WRONG_CALLS), pick),
        st.tuples(st.just("advance")),
        st.tuples(st.just("reset")),
    )
    return st.lists(step, max_size=max_size)


def play(driver: Driver, history: list[Step]) -> None:
    """Do the steps one by one; the driver checks after each."""
    remembered: tuple[list[int], Namespace, Any] | None = None
    for name, *given in history:
        if name == "admit":
            driver.do_admit(list(given[0]), NAMESPACES[given[1]])
        elif name == "finish":
            driver.do_compute(given[0], 99, extend=True, commit=True)
            driver.do_free(given[0])
        elif name == "append":
            driver.do_append(given[0], list(given[1]))
        elif name == "wrong":
            driver.do_wrong(*given)
        elif name == "remember":
            prompt, namespace = list(given[0]), NAMESPACES[given[1]]
            remembered = prompt, namespace, driver.do_lookup(prompt, namespace)
        elif name == "use remembered":
            if remembered is not None:
                driver.do_admit(remembered[0], remembered[1], hit=remembered[2])
        else:
            getattr(driver, f"do_{name}")(*given)
