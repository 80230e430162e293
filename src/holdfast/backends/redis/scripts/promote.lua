-- promote: bring due jobs into play, bury expired unstarted ones, revive letters that are due for it. Bounded.
-- Takes now, limit. Returns due, expired, revived, more.

if sealed then return hf.refused_sealed() end
local done = hf.promote(args[2])
hf.close()
return { done[1], done[2], done[3], done[4] and 1 or 0 }
