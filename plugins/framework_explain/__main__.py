"""`python -m framework_explain`: see `framework_explain.explain`."""

from framework.cli.exit import exit_with
from framework_explain.explain import main

if __name__ == "__main__":
    exit_with(main)
