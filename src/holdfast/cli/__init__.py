"""The command line: one file per command family, imported on demand."""
