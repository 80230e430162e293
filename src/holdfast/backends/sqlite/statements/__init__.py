"""The SQLite statements, one file per verb."""
