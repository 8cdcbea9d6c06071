"""Checks of a policy's and a hash scheme's answers, for an allocator that does without the rest of the toolkit."""

from framework.guard.hash import GuardedHash as GuardedHash
from framework.guard.policy import GuardedPolicy as GuardedPolicy
from framework.guard.policy import PolicyHost as PolicyHost
