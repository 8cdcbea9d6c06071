"""`python -m framework check`: a plugin's conformance kit without pytest, and what the plugin costs a call.

    python -m framework check NAME_OR_MODULE:CLASS [--kind KIND] [OPTION=VALUE ...]

From Python: `verdicts.resolve` finds the class, `verdicts.verdicts` runs its kit check by check, and `costs.costs`
times it beside the baselines.
"""
