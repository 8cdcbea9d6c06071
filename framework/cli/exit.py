"""How does a command end?"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn


def drop_output() -> None:
    """Nobody reads on: keep the interpreter from complaining at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its status; a reader that has read enough, such as `head`, is no failure."""
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
        status = 0
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # rich's way to say it
            raise
        drop_output()
        status = 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        status = 130
    sys.exit(status)
