"""The keeper: the worker's side that talks to the store, on a loop of its own."""
