"""Our routers in Ray Serve: a deployment of several replicas on this machine, through Ray's own interfaces."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="ray[serve] is not installed", exc_type=ImportError)
os.environ.setdefault("RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S", "20")  # else a busy machine's replicas seem full
serve = pytest.importorskip("ray.serve", reason="ray[serve] is not installed", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore")

_NUMBERS = count()
ROUTER = '''
from framework_fleet.router import Router


class ByFirstWord(Router):
    """The replica that the session's first letter names: a user's class, in a file of theirs."""

    def route(self, request, replicas):
        return replicas[ord(request.session[0]) % len(replicas)]
'''


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    own = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": 4, "include_dashboard": False}
    ray.init(log_to_driver=False, configure_logging=False, **own)
    yield
    serve.shutdown()
    ray.shutdown()


def deployed(router: Any, num_replicas: int = 2, **options: Any) -> Any:
    """A handle to replicas that answer with their names."""
    from ray.serve.config import RequestRouterConfig

    @serve.deployment(
        num_replicas=num_replicas,
        ray_actor_options={"num_cpus": 0.1},
        max_ongoing_requests=8,
        request_router_config=RequestRouterConfig(
            request_router_class="framework_engines.ray_serve:ServedRouter",
            request_router_kwargs={"router": router, "block_size": 4, **options},
        ),
    )
    class Named:
        def __call__(self, request: Any) -> str:
            return str(serve.get_replica_context().replica_id.unique_id)

    return serve.run(Named.bind(), name=f"app{next(_NUMBERS)}", route_prefix=None)  # Ray keeps a router for a name


def asked(handle: Any, prompts: list[Any], sessions: list[str] | None = None) -> list[str]:
    """Who answered each, one after the other."""
    found = []
    for number, prompt in enumerate(prompts):
        one = handle.options(session_id=sessions[number]) if sessions else handle
        found.append(one.remote(prompt).result(timeout_s=120))
    return found


def test_requests_go_where_the_router_says(cluster: None, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(ROUTER)
    handle = deployed(f"{path}:ByFirstWord")
    sessions = [letter * 3 for letter in "abcabcab"]
    found = asked(handle, [{"prompt": "x"} for _ in sessions], sessions)
    by_letter = {letter: {name for name, session in zip(found, sessions, strict=True) if session[0] == letter}
                 for letter in "abc"}  # fmt: skip
    assert all(len(names) == 1 for names in by_letter.values()), by_letter
    assert by_letter["a"] == by_letter["c"] != by_letter["b"]
    with pytest.raises(TypeError, match="not subscriptable") as found:
        asked(handle, ["a prompt without a session"])
    assert any("ByFirstWord.route" in note for note in getattr(found.value, "__notes__", ())), "who raised"
    assert asked(handle, ["x"], ["a"]) == [*by_letter["a"]], "the others go on"


def test_each_in_turn_and_a_session_where_it_was(cluster: None) -> None:
    found = asked(deployed("round_robin"), ["x"] * 6)
    assert found[0::2] == [found[0]] * 3
    assert found[1::2] == [found[1]] * 3
    assert found[0] != found[1]
    sessions = ["a", "b", "a", "b", "a", "b"]
    found = asked(deployed("session_affinity"), [{"messages": [{"role": "user", "content": "hi"}]}] * 6, sessions)
    assert len(set(found[0::2])) == len(set(found[1::2])) == 1


def test_a_prompt_goes_where_its_beginning_went(cluster: None) -> None:
    """Text, and token ids; a prefix that was sent draws what begins so, until the guess is forgotten."""
    handle = deployed({"name": "loadaware", "beta": 0.0})
    shared = "The same beginning, long enough for blocks of sixteen characters. "
    first = asked(handle, [{"prompt": shared + "a"}])[0]
    assert asked(handle, [{"prompt": shared + letter} for letter in "bcdef"]) == [first] * 5
    tokens = list(range(40))
    first = asked(handle, [{"prompt": tokens}])[0]
    assert asked(handle, [{"prompt": [*tokens, 7]}, {"prompt": [*tokens, 9]}]) == [first] * 2


def test_an_unknown_router_is_refused_by_name(cluster: None) -> None:
    from framework.errors import UnknownPlugin
    from framework_engines.ray_serve import ServedRouter

    made = object.__new__(ServedRouter)
    with pytest.raises(UnknownPlugin, match="no router named 'nearest'"):
        made.initialize_state("nearest")
