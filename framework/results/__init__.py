"""What runs leave behind: names of files, declared metrics, and reading a result back."""

from framework.results.catalogue import catalogue
from framework.results.metric import Metric

__all__ = ["Metric", "catalogue"]
