"""`python -m framework check`: a plugin's conformance kit without pytest, and what the plugin costs a call.

    python -m framework check NAME_OR_MODULE:CLASS [--kind KIND] [OPTION=VALUE ...]

From Python: `resolve` finds the class, `verdicts` runs its kit check by check, `costs` times it beside the baselines.
"""

from __future__ import annotations

from framework_testing.check.costs import Cost, busy, costs
from framework_testing.check.subject import Subject, resolve
from framework_testing.check.verdicts import Verdict, has_large_part, verdicts

__all__ = ["Cost", "Subject", "Verdict", "busy", "costs", "has_large_part", "resolve", "verdicts"]
