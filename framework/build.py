"""The former name of `framework.api`, kept through 0.1 for scripts that call `framework.build.run`."""

from framework.api import run as run
