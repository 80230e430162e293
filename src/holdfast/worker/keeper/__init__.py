"""The keeper: the part of a worker that talks to the store, on its own event loop."""
