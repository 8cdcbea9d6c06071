"""The override normaliser: both spellings of a choice become the one that plain Hydra takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framework.config.config import default_choices
from framework.config.hydra.overrides import normalise, quote, split_choices, unquote
from framework.errors import ConfigError

TABLE = [
    ("+allocator=prefix", ["allocator=prefix"]),
    ("+allocator=naive,prefix,cow", ["allocator=naive,prefix,cow"]),
    ("+allocator=glob(*)", ["allocator=glob(*)"]),
    ("+experiment=x", ["experiment=x"]),
    ("+allocator.watermark=0.02", ["++allocator.watermark=0.02"]),
    ("++allocator.watermark=0.02", ["++allocator.watermark=0.02"]),
    ("allocator.watermark=0.02", ["allocator.watermark=0.02"]),
    ("+allocator.a.b={c: d=e}", ["++allocator.a.b={c: d=e}"]),
    ("+tracker.project=x", ["++tracker.project=x"]),
    ("+model.dtype=x", ["model.dtype=x"]),
    ("+eviction={name: lru_k, k: 3, history: 0.5}", ["eviction=lru_k", "++eviction.k=3", "++eviction.history=0.5"]),
    ('allocator={"name":"prefix","a":[1,2]}', ['allocator="prefix"', "++allocator.a=[1,2]"]),
    ("model={dtype: float32, name: tiny}", ["model=tiny", "model.dtype=float32"]),
    ("model={name: ./weights, dtype: x}", ["model=checkpoint", "++model.path='./weights'", "model.dtype=x"]),
    ("workload={name: trace, path: /ä}", ["workload=trace", "++workload.path='/ä'"]),
    ("+allocators=1", ["+allocators=1"]),
    ("~allocator", ["~allocator"]),
    ("~allocator=prefix", ["~allocator=prefix"]),
    ("+hydra.launcher.n_jobs=2", ["+hydra.launcher.n_jobs=2"]),
    ("+allocator@other=prefix", ["+allocator@other=prefix"]),
    ("allocator/sub=x", ["allocator/sub=x"]),
    ("allocator", ["allocator"]),
    ("=x", ["=x"]),
    ("", [""]),
    ("+model=tiny", ["model=tiny"]),
    ("model=tinny", ["model=tinny"]),
    ("model=${other}", ["model=${other}"]),
    ("model=glob(*)", ["model=glob(*)"]),
    ("model=Qwen/Qwen3-0.6B", ["model=checkpoint", "++model.path='Qwen/Qwen3-0.6B'"]),
    ("+model=/a b/c=d", ["model=checkpoint", "++model.path='/a b/c=d'"]),
    ("model=/it's", ["model=checkpoint", r"++model.path='/it\'s'"]),
    ("model=~/m", ["model=checkpoint", "++model.path='~/m'"]),
    ("model=.", ["model=checkpoint", "++model.path='.'"]),
    (r"model=C:\models\x", ["model=checkpoint", r"++model.path='C:\models\x'"]),
    ("model='/a,b'", ["model=checkpoint", "++model.path='/a,b'"]),
    ("model=/a,/b", ["model=checkpoint", "++model.path='/a','/b'"]),
    ("model=tiny,/b", ["model=tiny,/b"]),
    ("workload=prompts.jsonl", ["workload=prompts", "++workload.path='prompts.jsonl'"]),
    ("workload=here", ["workload=prompts", "++workload.path='here'"]),
    ("workload=chat", ["workload=chat"]),
]


@pytest.mark.parametrize(("override", "expected"), TABLE, ids=[override or "empty" for override, _ in TABLE])
def test_an_override_has_one_normal_form(
    override: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "chat"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert normalise([override]) == expected


@pytest.mark.parametrize("value", ["{k: 3}", "{name: 3}", "{name}", "{name: lru, k}", "{}"])
def test_a_mapping_without_one_name_chooses_nothing(value: str) -> None:
    with pytest.raises(ConfigError, match="eviction is chosen by its name"):
        normalise([f"eviction={value}"])


def test_order_and_options_are_kept() -> None:
    words = ["-m", "+allocator=cow", "--cfg", "job", "seed=1", "+allocator.x=2"]
    assert normalise(words) == ["-m", "allocator=cow", "--cfg", "job", "seed=1", "++allocator.x=2"]


def normal(words: list[str]) -> list[str]:
    """Normalised; where a component is set to what is no name, that word."""
    try:
        return normalise(words)
    except ConfigError as error:
        return [str(error).partition("=")[0].lstrip("+")]


values = st.text(alphabet="abz01_.,*()[]{}'\"/ =+~$\\-", max_size=12)


@given(st.sampled_from(sorted(default_choices())), values)
def test_the_sign_before_a_choice_changes_nothing(group: str, value: str) -> None:
    forms = [normal([f"{sign}{group}={value}"]) for sign in ("", "+", "++")]
    assert forms[0] == forms[1] == forms[2]


@given(st.lists(st.one_of(values, st.builds("{}allocator{}={}".format, st.sampled_from(["", "+"]), values, values))))
def test_normalising_twice_changes_nothing_more(overrides: list[str]) -> None:
    once = normal(overrides)
    assert normal(once) == once


@given(
    st.sampled_from(["", "+", "++", "~"]), st.sampled_from(["cache.x", "foo", "hydra/launcher", "a@b", "seed"]), values
)
def test_what_is_not_a_group_of_ours_passes_untouched(sign: str, key: str, value: str) -> None:
    override = f"{sign}{key}={value}"
    assert normalise([override]) == [override]


@given(st.text(alphabet="ab'\"\\ ,=(){}[]$/", max_size=10).filter(lambda text: text == unquote(text)))
def test_hydra_reads_a_quoted_word_back(text: str) -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    [override] = OverridesParser.create().parse_overrides([f"model.path={quote(text)}"])
    assert str(override.value()) == text


@pytest.mark.parametrize(
    ("value", "words"),
    [("a,b", ["a", "b"]), ("a", ["a"]), ("", [""]), ("'a,b',c", ["'a,b'", "c"]), ("f(a,b),[c,d]", ["f(a,b)", "[c,d]"])],
)
def test_choices_split_at_bare_commas(value: str, words: list[str]) -> None:
    assert split_choices(value) == words
