"""Figures, one a file, each with a function `draw(...)` that returns a matplotlib Figure, or None where there is none.

A figure of a run declares what it draws from, `SOURCE`, the name of a file in the run directory, with `TITLE` and
`NOTE`; its `draw` takes that file's records. `framework_report.plots` lists those that stand in every report.
"""
