"""The multi-process worker: a guard, runner processes, and the protocol between them and the keeper."""
