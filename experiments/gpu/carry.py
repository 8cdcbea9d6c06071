"""Fill a folder with the wheels a GPU machine without a network may lack, for `run.py --wheels FOLDER`.

    python experiments/gpu/carry.py [--out experiments/gpu/wheels] [--python 3.12]

Run it where there is a network. torch, triton and numpy are not carried: the target has them. Packages that only have a
source distribution are built here, and must be pure Python.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BINARY = (
    "hydra-core>=1.3.2,<1.4", "omegaconf>=2.3,<2.4", "PyYAML>=5.1", "packaging>=23", "xxhash>=3.4", "orjson>=3.10",
    "rich>=13.7", "markdown-it-py", "mdurl", "pygments", "safetensors>=0.4.5", "pytest>=8.3", "pluggy", "iniconfig",
    "pytest-xdist>=3.6", "execnet", "pytest-timeout>=2.3", "pytest-benchmark>=5.1", "py-cpuinfo",
    "hypothesis>=6.120", "sortedcontainers",
)  # fmt: skip
"""What the engine, the command line and the GPU tests import, with what those need."""
SOURCE = ("antlr4-python3-runtime==4.9.3",)


def main() -> int:
    """Download, then build; pip's status when it fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE / "wheels")
    parser.add_argument("--python", default="3.12", help="of the target")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for command in commands(options.out, options.python):
        done = subprocess.run([sys.executable, "-m", "pip", *command])
        if done.returncode:
            return done.returncode
    wheels = sorted(options.out.glob("*.whl"))
    print(f"{len(wheels)} wheels, {sum(path.stat().st_size for path in wheels) / 1e6:.1f} MB in {options.out}")
    return 0


def commands(out: Path, python: str) -> list[list[str]]:
    """pip's arguments."""
    glibc = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014", "manylinux1")
    platforms = [word for name in glibc for word in ("--platform", f"{name}_x86_64")]
    download = ["download", "--no-deps", "--only-binary=:all:", "--python-version", python, *platforms]
    return [[*download, "-d", str(out), *BINARY], ["wheel", "--no-deps", "-w", str(out), *SOURCE]]


if __name__ == "__main__":
    sys.exit(main())
