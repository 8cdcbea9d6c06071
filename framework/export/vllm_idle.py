"""What vLLM asks of a KV connector, of one that moves no KV."""

from __future__ import annotations

from typing import Any


class MovesNothing:
    """Every answer of a connector without bytes to move. Needs no base class of vLLM's."""

    @property
    def requires_kv_delivery(self) -> bool:
        """Nothing is handed off that a preemption could spoil."""
        return False

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """Nothing is found outside the pool."""
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Nothing to load."""

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Nothing to save: the blocks may be freed."""
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing to load."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing to save."""

    def wait_for_save(self) -> None:
        """Nothing to wait for."""

    def reset_cache(self) -> bool:
        """There is no cache of the connector's own."""
        return True
