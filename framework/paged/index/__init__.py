"""The index from content to block: by chained hash, or by an exact trie where hashes may collide."""

from framework.paged.index.base import PrefixIndex as PrefixIndex
from framework.paged.index.choice import index_of as index_of
from framework.paged.index.duplicates import DuplicateIndex as DuplicateIndex
from framework.paged.index.hashed import HashIndex as HashIndex
from framework.paged.index.runs import RunIndex as RunIndex
from framework.paged.index.token_runs import TokenRunIndex as TokenRunIndex
from framework.paged.index.trie import TrieIndex as TrieIndex
