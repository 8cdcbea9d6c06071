"""Checks of what plugins answer, before memory is indexed with it or a result rests on it; and how plugins are named.

One guard a kind of plugin whose answers need a check. What a plugin raises is not contained: it ends the run, and
`framework.registry.culprit` names the plugin where the run ends.
"""
