"""Which flash-attn is installed, and the reasons why it cannot serve given shapes. Imports none of them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from framework.interfaces.backend import AttentionSpec

ORDER = ("3", "4", "2")
"""The order of preference, where several can serve."""

_INSTALL = {
    "2": "flash_attn is not installed: pip install flash-attn --no-build-isolation",
    "3": "flash_attn_interface is not installed: python setup.py install in the hopper folder of flash-attention",
    "4": "flash_attn.cute is not installed: pip install --pre flash-attn-4",
}
_PAGE = 256
TILE = 64
"""The smallest key tile of versions 3 and 4. A page of whole tiles is loaded with its unused slots, which may hold NaN:
version 4 is not asked for such pages, version 3 is made to load tokens."""


def is_installed(version: str) -> bool:
    """Whether the version's modules can be found. They are not imported."""
    if version == "3":
        return importlib.util.find_spec("flash_attn_interface") is not None
    package = importlib.util.find_spec("flash_attn")
    if package is None:
        return False
    if version == "2":
        return package.origin is not None  # version 4 alone leaves a namespace package
    folders = package.submodule_search_locations or ()
    return (
        any((Path(folder) / "cute").is_dir() for folder in folders) and importlib.util.find_spec("cutlass") is not None
    )


def reasons_against(version: str, spec: AttentionSpec, capability: tuple[int, int] | None) -> list[str]:
    """Why this version cannot serve `spec` on a chip of that compute capability (None: not known)."""
    reasons = [] if is_installed(version) else [_INSTALL[version]]
    size = spec.block_size
    if version == "2" and size % _PAGE:
        nearest = max(1, round(size / _PAGE)) * _PAGE
        reasons.append(f"page {size} is not a multiple of {_PAGE}; nearest: {nearest}")
    if version == "4" and size >= TILE:
        reasons.append(f"page {size} is loaded whole, unused slots too, and these may hold NaN; nearest: {TILE // 2}")
    if capability is not None:
        majors = {"2": (8, 9, 10, 11, 12), "3": (9,), "4": (9, 10, 11)}[version]
        if capability[0] not in majors:
            wanted = ", ".join(f"sm_{major}0" for major in majors)
            reasons.append(f"compute capability {capability[0]}.{capability[1]} is not among {wanted}")
    return reasons
