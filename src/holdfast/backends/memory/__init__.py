"""The in-memory store: the SQLite store on a database without a file."""
