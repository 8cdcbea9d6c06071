"""Archives of many files, which no trace reader reads: what to do with them instead."""

from __future__ import annotations

import zipfile
from pathlib import Path

from framework.errors import WorkloadError

_HINT = (
    "workload=agent_text reads archives of agent prompts (`python -m framework.run workload=agent_text "
    "workload.path=...`); unpack others and name the file, or the folder for kv-cache-tester's sessions"
)


def archive_hint(path: Path) -> None:
    """Refuse a tar or zip archive with what reads it.

    Raises:
        WorkloadError: it is one.
    """
    if not path.is_file():
        return
    if ".tar" in path.suffixes or path.suffix in (".tgz", ".txz") or zipfile.is_zipfile(path):
        raise WorkloadError(f"{path}: an archive, not a trace: {_HINT}")
