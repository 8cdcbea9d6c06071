"""Recordings without what is private in them: neither tokens nor names, and hashes that only this recording knows."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from framework.errors import FrameworkError
from framework.kv_events.schema import BlockRemoved, BlockStored, Event, Hash

_NAME_BYTES = 12


class Veil:
    """Replaces every hash and name by a keyed hash of it. The key is drawn anew for each recording and never written.

    Without the key nobody can tell whether a prompt that they guess is in the recording: an engine's own hashes could
    be computed from it. Equal contents keep equal names within a recording, which is all that a replay needs.

    Args:
        key: for tests; None draws one.
    """

    def __init__(self, key: bytes | None = None) -> None:
        self._key = secrets.token_bytes(32) if key is None else key

    def name(self, value: Hash) -> str:
        """24 hexadecimal digits for a hash or a text; equal for equal ones of one type."""
        data = value if isinstance(value, bytes) else repr(value).encode()
        return hashlib.blake2b(data, key=self._key, digest_size=_NAME_BYTES).hexdigest()

    def event(self, event: Event) -> Event:
        """The event with names in place of hashes, adapters and sessions; no tokens, no extra keys."""
        if isinstance(event, BlockStored):
            above = event.parent_block_hash
            return BlockStored(
                block_hashes=self._names(event.block_hashes),
                parent_block_hash=None if above is None else self.name(above),
                token_ids=(),
                block_size=event.block_size,
                medium=event.medium,
                lora_name=None if event.lora_name is None else self.name(event.lora_name),
                group_idx=event.group_idx,
                session_id=None if event.session_id is None else self.name(event.session_id),
            )
        if isinstance(event, BlockRemoved):
            return replace(event, block_hashes=self._names(event.block_hashes), ownership=None)
        return event

    def _names(self, hashes: Sequence[Hash]) -> list[str]:
        return [self.name(value) for value in hashes]


class PrivateFile:
    """A new file that its owner alone may read; each write is on its way to the disk when it returns.

    Raises:
        error: the file is there already, or cannot be written.
    """

    def __init__(self, path: Path, error: type[FrameworkError]) -> None:
        try:
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError as fault:
            raise error(f"{path} is there already; nothing was written: choose another name") from fault
        except OSError as fault:
            raise error(f"{path}: cannot be written: {fault.strerror or fault}") from fault

    def write(self, data: bytes) -> None:
        """All of it.

        Raises:
            OSError: the file cannot be written.
        """
        left = memoryview(data)
        while left:
            left = left[os.write(self._handle, left) :]

    def close(self) -> None:
        """Nothing follows."""
        os.close(self._handle)
