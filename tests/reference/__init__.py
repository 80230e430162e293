"""The contract in plain Python, with no database: what the stores are compared with, and what mutants are made of."""
