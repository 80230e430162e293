-- limits: what code declares and operators say of queues, groups and tasks.

-- == script declare: store the rules of queues and tasks; the latest word wins. Where one changed, jobs go into their
-- lanes and groups are brought to it, as many as a rule's own step moves; the rest is left for later
-- (lua/rearrange.lua). Takes now, [name, rule] of queues and of tasks, each rule as lua/rates.lua reads it, false for a
-- task that says nothing; how many jobs and groups to move. Returns nothing. Safe against a rival: a script runs alone;
-- claims obey the rules as they stand from here on.

local step = args[4]
for _, one in ipairs(args[3]) do
    local name, packed = one[1], one[2] and cpack(one[2])
    local before = call('HGET', TASKS, name)
    if before ~= packed then
        if sealed then return hf.refused_sealed() end -- the rules before this one were not new
        local was, lane = hf.task_of(name), hf.lane_of_task(name)
        hf.use('t')
        if packed then call('HSET', TASKS, name, packed) else call('HDEL', TASKS, name) end
        hf.forget_rules()
        if hf.task_of(name)[4] and not was[4] then call('HSET', META, 'listing', '') end
        hf.lane_changed(name, lane, hf.lane_of_task(name))
        hf.stir_apart(name)
    end
end
for _, one in ipairs(args[2]) do
    local name, rule = one[1], one[2]
    local packed = cpack(rule)
    if call('HGET', RULES, name) ~= packed then
        if sealed then return hf.refused_sealed() end
        local was = hf.rule_of(name)
        call('HSET', RULES, name, packed)
        if was[1] ~= rule[1] or was[2] ~= rule[2] or cpack(was[5] or false) ~= cpack(rule[5]) then
            hf.leave_for_later('q' .. name)
        end
        hf.forget_rules()
        hf.stirred[name] = true
    end
end
hf.rearrange(step)
hf.close()
return { 1 }

-- == script limit: an operator's word on a queue, a group or a task. A group is brought to it in the same step.
-- Takes now, kind (q, g, t), queue, name, then a limit, a rate and whether a task is apart, each as [value], false
-- inside where it is reset, or nil where it is left; how many jobs to move. Returns 1, or a refusal. What is left of
-- a task's jobs is moved later (lua/rearrange.lua); claim leases none that is in a wrong lane.

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

-- == script pause: a queue (nothing of it is claimed), a group (ready ones withdrawn) or a task (parked), or the end of
-- that. Takes now, kind (q, g, t), queue, name, the packed pause or nil to resume, how many jobs to move. Returns 1
-- where something changed. What is left of a task's jobs is moved later; claim leases none that is in a wrong lane.

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

-- == part busy: how many jobs of each queue and task run, and who is told when one of them ends.
-- seldom: built when a script first uses one of its names.

hf.freed_are_told = false

-- Where a lease ended that took a place of a limited queue or task, others may now start. Told once: a claim in the
-- same script takes back what it found claimed by itself.
function hf.stir_freed()
    if hf.freed_are_told then return end
    hf.freed_are_told = true
    for queue in pairs(hf.ended_of) do
        if hf.rule_of(queue).limit < UNLIMITED then hf.stirred[queue] = true end
    end
    for task in pairs(hf.ended_for) do
        if hf.task_of(task)[1] < UNLIMITED then hf.stir_apart(task) end
    end
end

-- How many jobs of each queue and task run, changed by what ended and began here.
function hf.save_busy()
    hf.stir_freed()
    local changes = {}
    for name, number in pairs(hf.begun_of) do changes['q' .. name] = number end
    for name, number in pairs(hf.begun_for) do changes['t' .. name] = number end
    for name, number in pairs(hf.ended_of) do changes['q' .. name] = (changes['q' .. name] or 0) - number end
    for name, number in pairs(hf.ended_for) do changes['t' .. name] = (changes['t' .. name] or 0) - number end
    for scope, number in pairs(changes) do
        local left = number == 0 or redis.pcall('HINCRBY', BUSY, scope, number)
        if type(left) == 'table' or left ~= true and (left < 0 or left >= UNLIMITED) then -- it was no number of jobs
            left = hf.busy_numbers()[scope] or 0
            call('HSET', BUSY, scope, left)
        end
        if left == 0 then call('HDEL', BUSY, scope) end
    end
    hf.begun_of, hf.begun_for, hf.ended_of, hf.ended_for = {}, {}, {}, {}
end

-- == part recounting: how many jobs of each queue and task run, counted one by one: somebody damaged a number in
-- `busy`. Never writes; reads indexes, so its caller has flushed.
-- seldom: built when a script first uses one of its names.

hf.recounted = {}
local TASK_PLACE = 5 -- among the fields of a record, behind the three bytes that say how many they are

-- scope → number, as `busy` should have it.
function hf.busy_numbers()
    local numbers, ids = {}, {}
    local function add(scope) numbers[scope] = (numbers[scope] or 0) + 1 end
    hf.each_running(function(queue, id)
        add('q' .. queue)
        ids[#ids + 1] = id
    end)
    for from = 1, #ids, ARGUMENTS_MAX do
        local upto = math.min(#ids, from + ARGUMENTS_MAX - 1)
        for _, packed in ipairs(call('HMGET', JOBS, unpack(ids, from, upto))) do
            local fields = packed and { pcall(cmsgpack.unpack_limit, packed, TASK_PLACE, 3) } or {}
            local task = fields[TASK_PLACE + 2]
            if type(task) == 'string' then add('t' .. task) end
        end
    end
    return numbers
end

function hf.is_count(number) return number and number >= 0 and number < UNLIMITED and number % 1 == 0 end

-- What `busy` should have had when this script began. `change`: what began and ended here.
function hf.recount(scope, change)
    hf.flush()
    hf.recounted[scope] = hf.recounted[scope] or (hf.busy_numbers()[scope] or 0) - change
    return hf.recounted[scope]
end
