"""Allocators, eviction policies, hash schemes, memories of several groups, and no tracker."""
