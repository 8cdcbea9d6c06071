"""Public traces by name: where they come from, under which licence, and how to tell that a copy is whole."""

from __future__ import annotations

import hashlib
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from framework.errors import InvalidArgument, WorkloadError
from framework_workloads.lines import open_bytes

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class PublicTrace:
    """One trace on the web.

    Attributes:
        url, licence, about: where, under what terms, what it is.
        sha256: of the decompressed content; "" where no copy was at hand to take it from.
    """

    url: str
    licence: str
    about: str
    sha256: str = ""

    @property
    def file_name(self) -> str:
        return self.url.rsplit("/", 1)[1]


_MOONCAKE = "https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release"
_AZURE = "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data"
_BAILIAN = "https://media.githubusercontent.com/media/alibaba-edu/qwen-bailian-usagetraces-anon/main"
_BURSTGPT = "https://raw.githubusercontent.com/HPMLL/BurstGPT/main/data"

PUBLIC_TRACES = {
    "mooncake-conversation": PublicTrace(
        f"{_MOONCAKE}/traces/conversation_trace.jsonl",
        "Apache-2.0",
        "12,031 chat requests in an hour, 512-token prefix blocks (FAST'25)",
        "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
    ),
    "mooncake-toolagent": PublicTrace(
        f"{_MOONCAKE}/traces/toolagent_trace.jsonl", "Apache-2.0", "23,608 tool and agent requests (FAST'25)"
    ),
    "mooncake-synthetic": PublicTrace(
        f"{_MOONCAKE}/traces/synthetic_trace.jsonl", "Apache-2.0", "3,993 requests made from public datasets (FAST'25)"
    ),
    "azure-2023-conv": PublicTrace(
        f"{_AZURE}/AzureLLMInferenceTrace_conv.csv",
        "CC-BY-4.0",
        "19,366 chat requests, lengths and times (ISCA'24)",
        "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
    ),
    "azure-2023-code": PublicTrace(
        f"{_AZURE}/AzureLLMInferenceTrace_code.csv", "CC-BY-4.0", "coding requests, lengths and times (ISCA'24)"
    ),
    "burstgpt-1": PublicTrace(
        f"{_BURSTGPT}/BurstGPT_1.csv", "CC-BY-4.0", "two months of ChatGPT and GPT-4 requests, lengths and times"
    ),
    "bailian-a": PublicTrace(
        f"{_BAILIAN}/qwen_traceA_blksz_16.jsonl", "Apache-2.0", "two hours of chat, 16-token blocks (ATC'25)"
    ),
    "bailian-b": PublicTrace(
        f"{_BAILIAN}/qwen_traceB_blksz_16.jsonl", "Apache-2.0", "two hours of API calls, 16-token blocks (ATC'25)"
    ),
}


def content_sha256(path: str | Path) -> str:
    """SHA-256 of a file's decompressed content, in hexadecimal."""
    digest = hashlib.sha256()
    with open_bytes(path) as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()


def fetch(name: str, folder: str | Path) -> tuple[Path, str]:
    """Download a public trace into `folder` unless it is there, and check it. Returns its path and its SHA-256.

    A copy that was put there by hand is used too, also compressed as `NAME.gz` or `NAME.zst`.

    Raises:
        InvalidArgument: no such name.
        WorkloadError: no network (says where to put the file), or content with another checksum, which is removed
            when it was just downloaded.
    """
    if name not in PUBLIC_TRACES:
        raise InvalidArgument(f"no public trace {name!r}; known: {', '.join(PUBLIC_TRACES)}")
    trace, folder = PUBLIC_TRACES[name], Path(folder)
    target = folder / trace.file_name
    copies = [target, *(folder / f"{trace.file_name}.{suffix}" for suffix in ("gz", "zst"))]
    path = next((copy for copy in copies if copy.is_file()), None)
    downloaded = path is None
    if path is None:
        path = _download(trace, target)
    digest = content_sha256(path)
    if trace.sha256 and digest != trace.sha256:
        if downloaded:
            path.unlink()
        raise WorkloadError(f"{path}: SHA-256 is {digest}, expected {trace.sha256}: another or a damaged file")
    return path, digest


def _download(trace: PublicTrace, target: Path) -> Path:
    partial = target.with_name(target.name + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(trace.url, timeout=_TIMEOUT_S) as response, partial.open("wb") as file:
            shutil.copyfileobj(response, file)
    except (urllib.error.URLError, OSError) as error:
        partial.unlink(missing_ok=True)
        raise WorkloadError(
            f"cannot download {trace.url}: {error}; get it on another machine and put it at {target} (.gz or .zst is "
            "fine too), then run the same command again"
        ) from error
    return partial.replace(target)
