"""The Redis and Valkey store: every verb is one Lua script, and so one atomic step and one round trip."""
