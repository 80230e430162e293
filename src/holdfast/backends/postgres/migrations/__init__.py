"""The schema, one file per version, applied in order."""
