"""How does a command end?"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import NoReturn


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Run a command and exit with its status; a reader that has read enough, such as `head`, is no failure."""
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at its end
        status = 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)  # noqa: T201
        status = 130
    sys.exit(status)
