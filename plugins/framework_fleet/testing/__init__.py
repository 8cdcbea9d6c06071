"""The conformance kit of routers, in the module `router`."""
