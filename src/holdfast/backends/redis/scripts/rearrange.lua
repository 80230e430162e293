-- rearrange: carry on what changed rules left to do. Takes now, how many jobs and groups. Returns 1: there is more.
-- Safe against a rival: a script runs alone, and what it has done is marked in the same step.

if sealed then return hf.refused_sealed() end
local more = hf.rearrange(args[2])
hf.close()
return { more and 1 or 0 }
