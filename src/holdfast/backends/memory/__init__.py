"""The store in this process's memory: the SQLite store on a database without a file."""
