-- pause: a queue (nothing of it is claimed), a group (ready ones withdrawn) or a task (parked), or the end of that.
-- Takes now, kind (q, g, t), queue, name, the packed pause or nil to resume, how many jobs to move. Returns 1 where
-- something changed. What is left of a task's jobs is moved later; claim leases none that is in a wrong lane.

if sealed then return hf.refused_sealed() end
local kind, queue, name, wanted, step = unpack(args, 2, 6)
local field = hf.scope_of(kind, queue, name)
local there = call('HEXISTS', PAUSES, field) == 1
local flow = kind == 'q' and not wanted and hf.flow_of(field)
local slowed = flow and flow[2] > now
if there == (wanted ~= nil) and not slowed then return { 0 } end
if slowed then
    flow[2] = 0
    hf.keep_flow(field, flow)
end
local lane = kind == 't' and hf.lane_of_task(name)
if wanted then
    wanted.paused_at = now
    hf.use('p')
    call('HSET', PAUSES, field, cpack(wanted))
else
    call('HDEL', PAUSES, field)
    if queue then hf.stirred[queue] = true end
end
hf.forget_rules()
if kind == 'g' then hf.touch(hf.place_of(queue, name)) end
if kind == 't' then
    hf.lane_changed(name, lane, hf.lane_of_task(name))
    hf.rearrange(step)
end
hf.close()
return { 1 }
