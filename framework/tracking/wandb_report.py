"""A sweep's report on Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from framework.tracking.wandb import INIT_TIMEOUT_S, has_account


def publish_report(folder: Path, files: Sequence[Path], tracker: Mapping[str, Any], group: str) -> None:
    """Put a sweep's report on W&B, as one more run of its group: the page to look at, all files as an artifact.

    Args:
        tracker: options of `tracker=wandb`, as the sweep's jobs had them; offline where these were.

    Raises:
        wandb.errors.Error: cannot be reached in time, or refuses.
    """
    import wandb

    mode = os.environ.get("WANDB_MODE") or str(tracker.get("mode", "auto"))
    if mode in ("auto", "online"):
        mode = "online" if has_account() else "offline"
    run = wandb.init(
        project=str(tracker.get("project", "kvcache-framework")),
        entity=tracker.get("entity"),
        group=group,
        job_type="report",
        name=f"report of {group}",
        mode=mode,  # type: ignore[arg-type]
        dir=str(folder),
        reinit="create_new",
        settings=wandb.Settings(
            console="off",
            silent=True,
            init_timeout=INIT_TIMEOUT_S,
            login_timeout=INIT_TIMEOUT_S,
            x_disable_meta=True,  # it would hold the command line with its secrets
        ),
    )
    try:
        artifact = wandb.Artifact(f"report-{run.id}", type="report")
        for path in files:
            artifact.add_file(str(path), name=path.name)
            if path.suffix == ".html":
                run.log({"report": wandb.Html(path.read_text(encoding="utf-8"), inject=False)})
        run.log_artifact(artifact)
    finally:
        run.finish()
