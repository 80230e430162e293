-- limits: rules that code declares, operators' overrides and pauses of queues, groups and tasks, and which apply.

-- == script declare: store the rules of queues and tasks; the latest declaration wins. If one changed, moves jobs to
-- their lanes and fits groups to it, up to the step's limit; the rest is left for later (lua/rearrange.lua).
-- args: now, queues, tasks, step
-- Queues and tasks are NAMED, the rule being RULE or TASK, false for a task without one. `step`: how many jobs and
-- groups to move. Returns 1, or a refusal.
-- Concurrency: a script runs alone; claims obey the rules as they stand from here on.

for _, one in ipairs(args.tasks) do
    local name, packed = one[NAMED_NAME], one[NAMED_RULE] and cpack(one[NAMED_RULE])
    local before = call('HGET', TASKS, name)
    if before ~= packed then
        if sealed then return hf.refused_sealed() end -- the rules before this one were not new
        local was, lane = hf.task_of(name), hf.lane_of_task(name)
        hf.use('t')
        if packed then call('HSET', TASKS, name, packed) else call('HDEL', TASKS, name) end
        hf.forget_rules()
        if hf.task_of(name)[TASK_RETAIN_COUNT] and not was[TASK_RETAIN_COUNT] then call('HSET', META, 'listing', '') end
        hf.lane_changed(name, lane, hf.lane_of_task(name))
        hf.wake_lane(name)
    end
end
for _, one in ipairs(args.queues) do
    local name, rule = one[NAMED_NAME], one[NAMED_RULE]
    local packed = cpack(rule)
    if call('HGET', RULES, name) ~= packed then
        if sealed then return hf.refused_sealed() end
        local was = hf.rule_of(name)
        call('HSET', RULES, name, packed)
        if was[RULE_GROUP_LIMIT] ~= rule[RULE_GROUP_LIMIT] or was[RULE_GROUP_ORDER] ~= rule[RULE_GROUP_ORDER]
            or cpack(was[RULE_GROUP_RATE] or false) ~= cpack(rule[RULE_GROUP_RATE]) then
            hf.leave_for_later('q' .. name)
        end
        hf.forget_rules()
        hf.to_wake[name] = true
    end
end
hf.rearrange(args.step)
hf.close()
return { 1 }

-- == script limit: set or reset an operator's override of a queue, a group or a task. A group is fitted in the same
-- step.
-- args: now, kind, queue, name, limit, rate, apart, weight, step
-- `kind` is q, g or t; limit, rate, whether a task has a dedicated lane and a group's weight are each [value], [false]
-- to reset, or nil to leave unchanged; `step`: how many jobs to move. Returns 1, or a refusal.
-- Concurrency: a script runs alone. The rest of a task's jobs moves later (lua/rearrange.lua); claim leases no job that
-- is in the wrong lane.

if sealed then return hf.refused_sealed() end
local kind, queue, name, limit, rate, apart = args.kind, args.queue, args.name, args.limit, args.rate, args.apart
local scope = hf.scope_of(kind, queue, name)
if kind == 'g' and limit and limit[SET_VALUE] and limit[SET_VALUE] > 1 and hf.strict(queue, name) then
    return hf.refused('strict', { queue = queue, limit = limit[SET_VALUE] })
end
local lane = kind == 't' and hf.lane_of_task(name)
local packed = call('HGET', OVERRIDES, scope)
local said = packed and hf.sound_override(hf.read(packed)) or { false, false, false, false }
if limit then said[OVERRIDE_LIMIT] = limit[SET_VALUE] end
if rate then said[OVERRIDE_RATE] = rate[SET_VALUE] end
if apart then said[OVERRIDE_APART] = apart[SET_VALUE] end
if args.weight then said[OVERRIDE_WEIGHT] = args.weight[SET_VALUE] end
if said[OVERRIDE_LIMIT] or said[OVERRIDE_RATE] or said[OVERRIDE_APART] or said[OVERRIDE_WEIGHT] then
    hf.use('o')
    call('HSET', OVERRIDES, scope, cpack(said))
else
    call('HDEL', OVERRIDES, scope)
end
hf.forget_rules()

if kind == 't' then
    hf.lane_changed(name, lane, hf.lane_of_task(name))
    hf.rearrange(args.step)
    hf.wake_lane(name)
elseif kind == 'g' then
    hf.touch(hf.place_of(queue, name))
else
    hf.to_wake[queue] = true
end
hf.close()
return { 1 }

-- == script pause: pause or resume a queue (nothing is claimed), a group (ready jobs are withdrawn) or a task (jobs are
-- parked).
-- args: now, kind, queue, name, pause, skip_dead, step
-- `kind` is q, g or t; `pause` is stored as it is, nil to resume; `skip_dead`: the group continues without the dead
-- jobs that stop it; `step`: how many jobs to move. Returns 1 if something changed.
-- Concurrency: a script runs alone. The rest of a task's jobs moves later; claim leases no job that is in the wrong
-- lane.

if sealed then return hf.refused_sealed() end
local kind, queue, name, wanted = args.kind, args.queue, args.name, args.pause
local field = hf.scope_of(kind, queue, name)
local there = call('HEXISTS', PAUSES, field) == 1
local flow = kind == 'q' and not wanted and hf.flow_of(field)
local slowed = flow and flow[FLOW_SHUT_UNTIL] > now
local passed = kind == 'g' and args.skip_dead and hf.skip_dead(hf.place_of(queue, name))
if there == (wanted ~= nil) and not slowed and not passed then return { 0 } end
if slowed then
    flow[FLOW_SHUT_UNTIL] = 0
    hf.keep_flow(field, flow)
end
local lane = kind == 't' and hf.lane_of_task(name)
if wanted then
    wanted.paused_at = now
    hf.use('p')
    call('HSET', PAUSES, field, cpack(wanted))
else
    call('HDEL', PAUSES, field)
    if queue then hf.to_wake[queue] = true end
end
hf.forget_rules()
if kind == 'g' then hf.touch(hf.place_of(queue, name)) end
if kind == 't' then
    hf.lane_changed(name, lane, hf.lane_of_task(name))
    hf.rearrange(args.step)
end
hf.close()
return { 1 }

-- == part flow: which limits, rates, pauses and lanes are in force: an operator's override, else what code declares.
-- A rate is {count, seconds, burst or false}. A lifted one, as high as UNLIMITED, counts as none.
-- `used` in meta, which opening read, lists which of pauses, overrides, task rules, rate states and letters the store
-- ever had: a store without them pays no more than that.

local UNLIMITED, SERIAL_PREFIX = 1000000000, 'one-at-a-time:'
hf.any_memo, hf.pause_memo, hf.rule_memo, hf.override_memo, hf.task_memo, hf.lane_memo = {}, {}, {}, {}, {}, {}
hf.orders = { strict = true, relaxed = true }

-- Unpacks a list or a map; false if it cannot be read, which then counts as absent.
function hf.read(packed)
    local is_sound, value = pcall(cunpack, packed)
    return is_sound and type(value) == 'table' and value
end

-- Whether there are any pauses (p), overrides (o), task rules (t), rate states (f), rate states of groups (g), letters
-- (d), changes still to be carried out (r), ids remembered without their jobs (m), edges between jobs (e) or steps (s).
function hf.any(kind)
    local there = hf.any_memo[kind]
    if there == nil then
        there = meta.used and string.find(meta.used, kind, 1, true) and hf.count_of(kind) > 0 or false
        hf.any_memo[kind] = there
    end
    return there
end

function hf.paused(scope)
    if not hf.any('p') then return false end
    if hf.pause_memo[scope] == nil then hf.pause_memo[scope] = call('HEXISTS', PAUSES, scope) == 1 end
    return hf.pause_memo[scope]
end

-- The limit and rate in force: the override, else the declared ones given here.
function hf.in_force(scope, limit, rate)
    if hf.any('o') then
        local said = hf.override_memo[scope]
        if said == nil then
            local packed = call('HGET', OVERRIDES, scope)
            said = packed and hf.sound_override(hf.read(packed))
            hf.override_memo[scope] = said
        end
        if said then limit, rate = said[OVERRIDE_LIMIT] or limit, said[OVERRIDE_RATE] or rate end
    end
    return limit or UNLIMITED, rate and rate[RATE_COUNT] < UNLIMITED and rate
end

-- How many turns per round the group at a place has; the default is one.
function hf.weight_of(place)
    if not hf.any('o') then return 1 end
    hf.in_force('g' .. place)
    local said = hf.override_memo['g' .. place]
    return said and said[OVERRIDE_WEIGHT] or 1
end

-- A queue's {group limit, order, limit, rate, group rate, aging} as declared, with the limit and rate in force as named
-- fields. An undeclared queue is strict.
function hf.rule_of(queue)
    local rule = hf.rule_memo[queue]
    if not rule then
        local packed = call('HGET', RULES, queue)
        rule = packed and hf.read(packed)
        local limit = rule and rule[RULE_GROUP_LIMIT]
        if rule and not (type(limit) == 'number' and limit >= 0 and limit % 1 == 0
            and hf.orders[rule[RULE_GROUP_ORDER]]) then
            rule = false
        end
        if not rule then
            rule = { 1, 'strict' }
        elseif rule[RULE_LIMIT] or rule[RULE_RATE] or rule[RULE_GROUP_RATE] or rule[RULE_AGING]
            or rule[RULE_ORDER_WINDOW] then
            hf.repair_rule(rule)
        end
        rule.limit, rule.rate = hf.in_force('q' .. queue, rule[RULE_LIMIT], rule[RULE_RATE])
        hf.rule_memo[queue] = rule
    end
    return rule
end

-- A task's {limit, rate, whether it has a dedicated lane, how many finished jobs are kept or nil}.
function hf.task_of(task)
    local known = hf.task_memo[task]
    if not known then
        local packed = hf.any('t') and call('HGET', TASKS, task)
        local rule = packed and hf.sound_task(hf.read(packed)) or {}
        local limit, rate = hf.in_force('t' .. task, rule[TASK_LIMIT], rule[TASK_RATE])
        local said = hf.override_memo['t' .. task]
        local apart = rule[TASK_APART] or said and said[OVERRIDE_APART] or limit < UNLIMITED or rate
        known = { limit, rate, apart, rule[TASK_RETAIN_COUNT] or nil }
        hf.task_memo[task] = known
    end
    return known
end

function hf.lane_of(row)
    local lane = hf.lane_memo[row[TASK]]
    if lane == nil then
        lane = TASK_LANE(row[TASK]) or false
        hf.lane_memo[row[TASK]] = lane
    end
    return lane or LANE_BY_GROUP(row[GROUP])
end

-- == part busy: how many jobs of each queue and task run, and wake-ups when one of them ends.
-- lazy: built when a script first uses one of its names.

hf.freed_are_noted = false

-- Wakes workers if a lease ended that took a slot of a limited queue or task, because others may now start. Done once:
-- a claim in the same script cancels the wake-ups for what it claimed itself.
function hf.wake_for_freed()
    if hf.freed_are_noted then return end
    hf.freed_are_noted = true
    for queue in pairs(hf.ended_of) do
        if hf.rule_of(queue).limit < UNLIMITED then hf.to_wake[queue] = true end
    end
    for task in pairs(hf.ended_for) do
        if hf.task_of(task)[TASK_LIMIT] < UNLIMITED then hf.wake_lane(task) end
    end
end

-- Updates the counts of running jobs by queue and task with what ended and began in this script.
function hf.save_busy()
    hf.wake_for_freed()
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

-- == part recount: count the running jobs of each queue and task one by one, after a number in `busy` was damaged.
-- Never writes; reads indexes, so the caller must have flushed.
-- lazy: built when a script first uses one of its names.

hf.recounted = {}

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
            local fields = packed and { pcall(cmsgpack.unpack_limit, packed, FIELD.task, RECORD_HEAD_BYTES) } or {}
            local task = fields[FIELD.task + 2] -- behind the success and the next offset
            if type(task) == 'string' then add('t' .. task) end
        end
    end
    return numbers
end

function hf.is_count(number) return number and number >= 0 and number < UNLIMITED and number % 1 == 0 end

-- The number `busy` should have had when this script began. `change`: what began and ended in it.
function hf.recount(scope, change)
    hf.flush()
    hf.recounted[scope] = hf.recounted[scope] or (hf.busy_numbers()[scope] or 0) - change
    return hf.recounted[scope]
end
