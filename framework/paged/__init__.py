"""The toolkit for paged allocators: block pool, prefix index, and an allocator that needs a few lines to complete.

`PagedAllocator` (in `framework.paged.allocator`) is complete: a subclass sets `share_prefix` and `share_forks`, and may
override `choose_free`. Whoever needs more composes the parts: `BlockPool` (states and facts as arrays), `PrefixIndex`
(content to block, by hash or by exact trie), `BlockCache` (taking, sharing, evicting, publishing, all or nothing).
"""
