-- limit_group: override a group's limit, or go back to the queue's; the group is brought to it in the same step.
-- Takes now, queue, group, limit or nil. Returns nothing, or a refusal.
-- needs: opening turns names rows index refilling closing

if sealed then return hf.refused_sealed() end
local queue, group, limit = args[2], args[3], args[4]
local place = hf.place_of(queue, group)
if limit and limit > 1 and hf.strict(queue) then return hf.refused('strict', { queue = queue, limit = limit }) end
if limit then call('HSET', OVERRIDES, place, limit) else call('HDEL', OVERRIDES, place) end
hf.touch(place)
hf.close()
return { 1 }
