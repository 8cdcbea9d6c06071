"""The conformance kit of replay cores, in the module `replay_core`."""
