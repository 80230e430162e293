"""The command line: one file per family of commands, loaded when asked for."""
