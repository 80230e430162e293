-- pause: a queue (nothing of it is claimed), a group (ready ones withdrawn) or a task (parked), or the end of that.
-- Takes now, kind (q, g, t), queue, name, and the packed pause or nil to resume. Returns 1 where something changed.
-- A task's jobs are moved by refill, page by page; claim passes over those not yet moved.

if sealed then return hf.refused_sealed() end
local kind, queue, name, wanted = args[2], args[3], args[4], args[5]
local field = hf.scope_of(kind, queue, name)
local there = call('HEXISTS', PAUSES, field) == 1
local flow = kind == 'q' and not wanted and hf.flow_of(field)
local slowed = flow and flow[2] > now
if there == (wanted ~= nil) and not slowed then return { 0 } end
if slowed then
    flow[2] = 0
    hf.keep_flow(field, flow)
end
if wanted then
    wanted.paused_at = now
    hf.use('p')
    call('HSET', PAUSES, field, cpack(wanted))
else
    call('HDEL', PAUSES, field)
    if queue then hf.stirred[queue] = true end
end
if kind == 'g' then hf.touch(hf.place_of(queue, name)) end
hf.close()
return { 1 }
