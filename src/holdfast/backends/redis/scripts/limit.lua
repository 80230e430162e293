-- limit: an operator's word on a queue, a group or a task. A group is brought to it in the same step.
-- Takes now, kind (q, g, t), queue, name, then a limit, a rate and whether a task is apart, each as [value], false
-- inside where it is reset, or nil where it is left; how many jobs to move. Returns 1, or a refusal. What is left of
-- a task's jobs is moved later (parts/rearranging.lua); claim leases none that is in a wrong lane.

if sealed then return hf.refused_sealed() end
local kind, queue, name, limit, rate, apart, step = unpack(args, 2, 8)
local scope = hf.scope_of(kind, queue, name)
if kind == 'g' and limit and limit[1] and limit[1] > 1 and hf.strict(queue, name) then
    return hf.refused('strict', { queue = queue, limit = limit[1] })
end
local lane = kind == 't' and hf.lane_of_task(name)
local packed = call('HGET', OVERRIDES, scope)
local said = packed and hf.sound_override(hf.read(packed)) or { false, false }
if limit then said[1] = limit[1] end
if rate then said[2] = rate[1] end
if apart then said[3] = apart[1] end
if said[1] or said[2] or said[3] then
    hf.use('o')
    call('HSET', OVERRIDES, scope, cpack({ said[1] or false, said[2] or false, said[3] or false }))
else
    call('HDEL', OVERRIDES, scope)
end
hf.forget_rules()

if kind == 't' then
    hf.lane_changed(name, lane, hf.lane_of_task(name))
    hf.rearrange(step)
    hf.stir_apart(name)
elseif kind == 'g' then
    hf.touch(hf.place_of(queue, name))
else
    hf.stirred[queue] = true
end
hf.close()
return { 1 }
