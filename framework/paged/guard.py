"""The guards that an allocator puts around its policy and hash scheme, for allocators that do without the toolkit."""

from framework.guard.hash import GuardedHash as GuardedHash
from framework.guard.policy import GuardedPolicy as GuardedPolicy
from framework.guard.policy import names_in_bulk as names_in_bulk
