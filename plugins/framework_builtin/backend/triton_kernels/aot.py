"""Registers, spills and shared memory of a kernel on a chip that is not present, by compiling ahead of time.

Run it in a process whose environment has no TRITON_INTERPRET: the language's own helpers are decorated at its import.
"""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.interfaces.backend import AttentionSpec
from framework_builtin.backend.triton_kernels import plan as plans
from framework_builtin.backend.triton_kernels.configs import ARCHS, ArchConfig
from framework_builtin.backend.triton_kernels.kernels import PER_BATCH

_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_INT_POINTERS = {"TABLES": "*i32", "LENS": "*i32", "STARTS": "*i32", "WORK": "*i32", "ROWS": "*i32"}
_LONG_POINTERS = {"SLOTS": "*i64", "COPIES": "*i64", "POSITIONS": "*i64"}
_FLOAT_POINTERS = ("LSE", "PART", "PART_LSE", "SINKS", "SLOPES", "K_SCALE", "V_SCALE")
_HALF_POINTERS = ("Q", "OUT", "K_NEW", "V_NEW", "Q_OUT", "COS", "SIN")
_FLOATS = ("score_scale", "cap_scale")


_USUAL: dict[str, Any] = {
    "num_heads": 32,
    "num_kv_heads": 4,
    "head_dim": 128,
    "dtype": "bfloat16",
    "block_size": 16,
}
_UNUSUAL: tuple[dict[str, Any], ...] = (
    {"sliding_window": 4096, "soft_cap": 50.0, "sinks": True, "alibi": True, "block_size": 256},
    {"num_kv_heads": 32, "head_dim": 80, "block_size": 3},  # one token a page id, padded heads, no group
)


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel as an architecture runs it, specialised on the spec; the rest as the launch asks for it.

    Attributes:
        rope: of a write: None, or which elements are a pair, "halves" or "neighbours".
        tma: of a prefill: tensor descriptors load K and V.
    """

    arch: str
    kernel: str
    spec: AttentionSpec
    split: bool = True
    lse: bool = False
    rope: str | None = None
    tma: bool = False

    @property
    def name(self) -> str:
        """A stable key, such as "sm_90/decode/bfloat16/d128/group8/page16"."""
        spec = self.spec
        stored = f"+{spec.kv_dtype}" if spec.kv_dtype else ""
        group = spec.num_heads // spec.num_kv_heads
        extras = [name for name in ("sliding_window", "soft_cap", "sinks", "alibi") if getattr(spec, name)]
        extras += [name for name, on in (("lse", self.lse), ("unsplit", not self.split), ("tma", self.tma)) if on]
        extras += [f"rope_{self.rope}"] if self.rope else []
        shape = f"{spec.dtype}{stored}/d{spec.head_dim}/group{group}/page{spec.block_size}"
        return "/".join([self.arch, self.kernel, shape, *extras])


@dataclass(frozen=True, slots=True)
class Resources:
    """What a compiled kernel takes.

    Attributes:
        matrix_instructions, async_loads: of the kernels that attend.
        spills: instructions that move registers to or from local memory. AMD: vector registers spilled
            (scalar ones spill to vector lanes, not to memory).
        stack_bytes: local memory a thread; a few bytes without spills are the ABI's frame.
        async_loads: instructions that copy global to shared memory past the registers.
    """

    registers: int
    spills: int
    stack_bytes: int
    shared_bytes: int
    matrix_instructions: str
    async_loads: int


def shipped_variants(archs: tuple[str, ...] = tuple(ARCHS)) -> Iterator[Variant]:
    """Every configuration of the table; with all features and odd shapes once an architecture, as the small kernels."""
    for arch in archs:
        for kind, dim in ARCHS[arch].decode:
            dtype = "float32" if kind == "float" else "bfloat16"
            kv_dtype = "float8_e4m3fn" if kind == "fp8" else None
            spec = AttentionSpec(**(_USUAL | {"head_dim": dim, "dtype": dtype, "kv_dtype": kv_dtype}))
            yield Variant(arch, "decode", spec)
            yield Variant(arch, "prefill", spec, split=False)
            if dim == 128:
                yield Variant(arch, "prefill", spec)
        for changes in _UNUSUAL:
            spec = AttentionSpec(**(_USUAL | changes))
            yield Variant(arch, "decode", spec, split=spec.sinks, lse=spec.sinks)
            yield Variant(arch, "prefill", spec, split=False, lse=spec.sinks)
        for dim, configs in ARCHS[arch].tma.items():
            for config in configs:
                spec = AttentionSpec(**(_USUAL | {"head_dim": dim, "block_size": config.block_n}))
                yield Variant(arch, "prefill", spec, split=False, tma=True)
        if ARCHS[arch].tma:
            yield Variant(arch, "prefill", AttentionSpec(**(_USUAL | _UNUSUAL[0])), split=False, lse=True, tma=True)
        small = AttentionSpec(**_USUAL)
        for kernel in ("plan_splits", "merge_splits", "write_kv", "copy_blocks"):
            yield Variant(arch, kernel, small)
        for kernel in ("merge_splits", "copy_blocks"):
            yield Variant(arch, kernel, small, split=False)
        for heads, group in ((128, 128), (32, 2)):  # one kv head for all, in blocks of heads; a group below 16 rows
            spec = AttentionSpec(**(_USUAL | {"num_heads": heads, "num_kv_heads": heads // group}))
            yield Variant(arch, "decode", spec)
            yield Variant(arch, "prefill", spec, split=False)
        yield Variant(arch, "write_kv", small, rope="halves")
        quantised = AttentionSpec(**(_USUAL | {"kv_dtype": "float8_e4m3fn"}))
        yield Variant(arch, "write_kv", quantised, rope="neighbours")


_ALL_FEATURES: dict[str, Any] = {"sliding_window": 4096, "soft_cap": 50.0, "sinks": True, "alibi": True}


def wide_variants(archs: tuple[str, ...] = tuple(ARCHS)) -> Iterator[Variant]:
    """What users may select beyond `shipped_variants`: each row of the table with other groups, features and pages.

    Groups of 1, 2 and 16; a group of 4 with every feature and the log-sum-exp; a head dim below the tile's over pages
    of 3 tokens; prefill both whole and split.
    """
    for arch in archs:
        for kind, dim in ARCHS[arch].decode:
            dtype = "float32" if kind == "float" else "bfloat16"
            usual = _USUAL | {"head_dim": dim, "dtype": dtype, "kv_dtype": "float8_e4m3fn" if kind == "fp8" else None}
            changes: list[dict[str, Any]] = [{"num_kv_heads": 32 // group} for group in (1, 2, 16)]
            changes += [{"num_kv_heads": 8, **_ALL_FEATURES}, {"head_dim": 5 * dim // 8, "block_size": 3}]
            for change in changes:
                spec = AttentionSpec(**(usual | change))
                yield Variant(arch, "decode", spec, lse=spec.sinks)
                yield Variant(arch, "prefill", spec, split=False, lse=spec.sinks)
            for change in (changes[1], changes[3]):
                yield Variant(arch, "prefill", AttentionSpec(**(usual | change)))


def compile_variant(variant: Variant, shape: plans.Shape | None = None, arch: ArchConfig | None = None) -> Resources:
    """Compile one variant for its chip, which need not be here. 1 to 6 s.

    Args:
        shape: other tiles than the table's, to screen a candidate.
        arch: another table row than the variant's.
    """
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile

    from framework_builtin.backend.triton_kernels.kernels import compiled

    arch = arch or ARCHS[variant.arch]
    function, constants, options = _specialise(variant, arch, shape)
    kernel = compiled(function)
    signature, attributes = _signature(kernel, variant.spec, constants)
    if constants.get("TMA"):
        kind = f"tensordesc<{_TYPES[variant.spec.dtype]}[1, {constants['N']}, 1, {constants['D']}]>"
        for name in ("K", "V"):
            signature[name] = kind
            del attributes[(kernel.arg_names.index(name),)]
    source = ASTSource(kernel, signature, constants, attributes)
    binary = triton_compile(source, target=GPUTarget(*arch.target), options=options)
    if arch.target[0] == "hip":
        return _amd_resources(binary)
    return _nvidia_resources(binary, attends=variant.kernel in ("decode", "prefill"))


def _specialise(
    variant: Variant, arch: ArchConfig, shape: plans.Shape | None
) -> tuple[Callable[..., None], dict[str, Any], dict[str, int]]:
    from framework_builtin.backend.triton_kernels import decode, prefill, store

    spec = variant.spec
    shared: dict[str, Any] = plans.feature_constants(spec, arch) | {"UPCAST": False}
    absent = {"SINKS": spec.sinks, "SLOPES": spec.alibi, "LSE": variant.lse}
    shared |= {name: None for name, present in absent.items() if not present}
    if not shared["FP8"]:
        shared |= {"K_SCALE": None, "V_SCALE": None}
    if variant.kernel == "decode":
        shape = shape or plans.decode_shape(spec, arch, 32, 8192)
        tiles = {"M": shape.m, "N": shape.n, "D": shape.d, "HEAD_BLOCKS": shape.head_blocks}
        constants = shared | tiles | {"NUM_KV_HEADS": spec.num_kv_heads, "ITEMS": 1, "SPLIT": variant.split}
        if not variant.split:
            constants |= {"WORK": None, "PART": None, "PART_LSE": None}
        return decode.decode, constants, {"num_warps": shape.num_warps, "num_stages": shape.num_stages}
    if variant.kernel == "prefill":
        if shape is None:
            shape = plans.prefill_shape(spec, arch, 8192, 8192, tma=variant.tma)
            shape = plans.split_shape(spec, shape) if variant.split else shape
        tiles = {"M": shape.m, "N": shape.n, "D": shape.d, "BLOCK_Q": plans.block_q(spec, shape)}
        tiles |= {"TMA": int(shape.tma), "HEAD_BLOCKS": shape.head_blocks, "NUM_KV_HEADS": spec.num_kv_heads}
        if not (variant.split):
            shared |= {"PART": None, "PART_LSE": None}
        return prefill.prefill, shared | tiles, {"num_warps": shape.num_warps, "num_stages": shape.num_stages}
    if variant.kernel == "plan_splits":
        return decode.plan_splits, {"HAS_WINDOW": False, "N": 64, "B": 256, "W": 1024}, {}
    if variant.kernel == "merge_splits":
        constants = {"NUM_HEADS": spec.num_heads, "HEAD_DIM": spec.head_dim, "M": 8, "D": 128, "LSE": None}
        return decode.merge_splits, constants | ({} if variant.split else {"ROWS": None}), {}
    if variant.kernel == "write_kv":
        return store.write_kv, _write_constants(variant), {}
    elements = spec.num_kv_heads * spec.head_dim * spec.block_size
    return store.copy_blocks, {"NUM_ELEMENTS": elements, "E": 1024, "ORDERED": variant.split}, {"num_stages": 1}


def _write_constants(variant: Variant) -> dict[str, Any]:
    spec, rotates = variant.spec, variant.rope is not None
    shape = plans.store_shape(spec, 8192, rotates=rotates, interpreted=False)
    constants: dict[str, Any] = {
        "NUM_HEADS": spec.num_heads,
        "NUM_KV_HEADS": spec.num_kv_heads,
        "HEAD_DIM": spec.head_dim,
        "PAGE": spec.block_size,
        "PAIRS": shape.pairs,
        "HEADS": shape.heads,
        "TOKENS": shape.tokens,
        "INTERLEAVED": variant.rope == "neighbours",
        "QUANTISE": spec.kv_dtype is not None,
        "UPCAST": False,
    }
    absent = [] if rotates else ["Q", "Q_OUT", "COS", "SIN", "POSITIONS"]
    absent += [] if spec.kv_dtype else ["K_SCALE", "V_SCALE"]
    return constants | dict.fromkeys(absent)


def _signature(kernel: Any, spec: AttentionSpec, constants: dict[str, Any]) -> tuple[dict[str, str], dict[Any, Any]]:
    """Types of all arguments, and which are known to be multiples of 16."""
    stored = "*u8" if spec.kv_dtype else f"*{_TYPES[spec.dtype]}"
    signature: dict[str, str] = {}
    attributes: dict[Any, Any] = {}
    for position, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        if name in _FLOATS:
            signature[name] = "fp32"
            continue
        pointers = _INT_POINTERS | _LONG_POINTERS | dict.fromkeys(_FLOAT_POINTERS, "*fp32")
        pointers |= dict.fromkeys(_HALF_POINTERS, f"*{_TYPES[spec.dtype]}") | {"K": stored, "V": stored}
        signature[name] = pointers.get(name, "i32")
        if not name.startswith(PER_BATCH):
            attributes[(position,)] = [["tt.divisibility", 16]]
    return signature, attributes


def _nvidia_resources(binary: Any, *, attends: bool) -> Resources:
    """A kernel that does not attend is disassembled only where it uses local memory: without, nothing can spill."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(binary.asm["cubin"])
        usage = _tool("cuobjdump", "--dump-resource-usage", str(cubin))
        numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
        wanted = attends or numbers["STACK"] + numbers["LOCAL"] > 0
        # Its analysis of data flow would cost more than all the rest.
        sass = _tool("nvdisasm", "-c", "-ndf", str(cubin)) if wanted else ""
    found = [name for name in ("UTCHMMA", "HGMMA", "HMMA", "FFMA") if re.search(rf"\b{name}\b", sass)]
    return Resources(
        registers=numbers["REG"],
        spills=len(re.findall(r"\b(?:LDL|STL)\b", sass)),
        stack_bytes=numbers["STACK"] + numbers["LOCAL"],
        shared_bytes=binary.metadata.shared,
        matrix_instructions=found[0] if found else "",
        async_loads=len(re.findall(r"\b(?:LDGSTS|UTMALDG)\b", sass)),
    )


def _amd_resources(binary: Any) -> Resources:
    text = binary.asm["amdgcn"]

    def number(name: str) -> int:
        return int(re.search(rf"\.{name}:\s+(\d+)", text)[1])  # type: ignore[index]

    return Resources(
        registers=number("vgpr_count"),
        spills=number("vgpr_spill_count"),
        stack_bytes=number("private_segment_fixed_size"),
        shared_bytes=binary.metadata.shared,
        matrix_instructions="MFMA" if "v_mfma" in text else "",
        async_loads=len(re.findall(r"buffer_load\w* .*\blds\b", text)),
    )


def _tool(name: str, *arguments: str) -> str:
    """Run a tool of the CUDA toolkit that the triton wheel carries."""
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([str(path), *arguments], check=True, capture_output=True, text=True).stdout


def as_dict(resources: Resources) -> dict[str, int | str]:
    """For the committed table."""
    return dataclasses.asdict(resources)
