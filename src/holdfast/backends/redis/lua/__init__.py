"""The Lua of this store, one file per verb; scripts.py assembles it."""
