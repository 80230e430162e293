-- get: whole jobs by id. Takes now, ids. Returns their pieces; ids that are not there are left out. Never writes.

return hf.shown(args[2])
