"""What an allocator that does without the rest of the toolkit puts around its policy and its hash scheme."""

from framework.guard.hash import GuardedHash as GuardedHash
from framework.guard.policy import GuardedPolicy as GuardedPolicy
from framework.guard.policy import PolicyHost as PolicyHost
