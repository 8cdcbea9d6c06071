from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

class BlockHashes:
    namespace: Any
    def __len__(self) -> int: ...
    def __getitem__(self, index: Any) -> Any: ...
    def __iter__(self) -> Iterator[bytes]: ...

class Core:
    def __init__(
        self,
        *,
        num_blocks: int,
        block_size: int,
        reserve: int,
        leaf_only: bool,
        share_tails: bool,
        collision_resistant: bool,
        native_sha256: bool,
        native_xxh3: bool,
        native_lru: bool,
    ) -> None: ...
    def bind(self, scheme: Any, guard: Any, candidates: Any) -> None: ...
    def columns(self) -> dict[str, npt.NDArray[Any]]: ...
    def listen(self, listener: Callable[[Any], Any] | None) -> None: ...
    def advance(self, now: float) -> None: ...
    def lookup(self, tokens: Any, namespace: Any, previous: Any) -> Any: ...
    def fits(self, request: Any, tokens: Any, hit: Any) -> bool: ...
    def allocate(self, request: Any, tokens: Any, hit: Any) -> None: ...
    def extend(self, request: Any, num_tokens: Any) -> Any: ...
    def commit(self, request: Any, tokens: Any) -> Any: ...
    def promise(self, request: Any, num_tokens: Any) -> None: ...
    def withdraw(self, request: Any) -> Any: ...
    def fork(self, parent: Any, child: Any, num_tokens: Any) -> Any: ...
    def foresee(self, request: Any, next_use: Any) -> None: ...
    def unref_leading(self, request: Any, num_tokens: Any, used: Callable[[list[int]], None] | None) -> int: ...
    def truncate(self, request: Any, num_tokens: Any) -> None: ...
    def free(self, request: Any) -> None: ...
    def table(self, request: Any) -> npt.NDArray[np.int32]: ...
    def reset(self) -> None: ...
    def stats(self) -> tuple[int, ...]: ...
    def hashed_blocks(self) -> int: ...
    def block_hash(self, block: int) -> Any: ...
    def parent(self, block: int) -> int: ...
    def hashes(self, request: Any) -> list[bytes]: ...
    def state(self) -> dict[str, Any]: ...

class Attention:
    instructions: str
    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int,
        scale: float,
        soft_cap: float,
        window: int,
        format: int,
        kv_format: int,
    ) -> None: ...
    def attend(self, *args: Any) -> None: ...

def sha256_block(parent: bytes, tokens: bytes) -> bytes: ...
def sha_instructions() -> bool: ...
def replay(
    policy: str,
    parameters: Sequence[float],
    *,
    nodes: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    parents: npt.NDArray[np.int32],
    next_requests: npt.NDArray[np.int32] | None,
    num_blocks: int,
    leaf_first: bool,
    bypass: bool,
) -> tuple[npt.NDArray[np.int32], int, int]: ...
def replay_hazard(
    learner: Any,
    *,
    tolerance: float,
    window: int,
    warm_up: int,
    nodes: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    parents: npt.NDArray[np.int32],
    prompt_tokens: npt.NDArray[np.int64],
    turns: npt.NDArray[np.int64],
    arrivals: npt.NDArray[np.float64],
    returns: npt.NDArray[np.float64],
    categories: npt.NDArray[np.int32],
    foretold: npt.NDArray[np.int32],
    partial: npt.NDArray[np.uint8],
    num_blocks: int,
    leaf_first: bool,
    list_evicted: bool,
) -> tuple[npt.NDArray[np.int32], int, int, npt.NDArray[np.int32]]: ...
def replay_tiers(
    policies: Sequence[str],
    parameters: Sequence[Sequence[float]],
    num_blocks: Sequence[int],
    *,
    on_eviction: bool,
    uses: int,
    exclusive: bool,
    nodes: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int64],
    parents: npt.NDArray[np.int32],
    node_tokens: npt.NDArray[np.int64],
    next_requests: npt.NDArray[np.int32] | None,
    leaf_first: bool,
) -> tuple[npt.NDArray[np.int32], int, int, int, list[tuple[int, ...]]]: ...
