"""The verbs, one Lua file each."""
