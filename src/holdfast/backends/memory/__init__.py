"""The store in this process's memory: the reference reading of the contract."""
