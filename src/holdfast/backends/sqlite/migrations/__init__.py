"""The SQLite migrations, one file per version, in order."""
