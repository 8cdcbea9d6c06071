"""What runs leave behind: names of files, declared metrics, and reading them back.

`read(DIR)` gives the runs of a directory or a sweep; see docs/results.md.
"""

from framework.results.catalogue import catalogue
from framework.results.metric import Metric
from framework.results.records import Results, Run, read

__all__ = ["Metric", "Results", "Run", "catalogue", "read"]
