"""What several verbs share, in Lua: rows, names, the index, groups, endings, letters, sweeps, claims."""
