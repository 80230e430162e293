-- wakeups: whether there may be work for a sleeping worker.

-- == script wait_for_work: whether these queues have work that no limit, rate or slow-down holds back.
-- args: now, queues
-- Returns packed seconds until there may be work (0 now, nil if nothing is scheduled) and the last hint's stream id.
-- During a quiet time there is no work. Never writes: the answer is a hint, and claim decides.

local last = call('XREVRANGE', WAKE, '+', '-', 'COUNT', 1)[1]
last = last and last[HINT_ID] or '0-0'
local quiet = (tonumber(meta.quiet_until) or 0) - now
if quiet > 0 then return { cpack(quiet), last } end

local function claimable(queue)
    if hf.queue_room(queue) <= 0 then return false end
    if hf.any_ready(queue) then return true end
    for _, one in ipairs(hf.tasks_apart(queue)) do
        local rule = hf.task_of(one.task)
        if hf.room_of('t' .. one.task, rule[TASK_LIMIT], rule[TASK_RATE]) > 0 then return true end
    end
    return false
end

for _, queue in ipairs(args.queues) do
    if claimable(queue) then return { cpack(0), last } end
end
local soonest = hf.opens_at(args.queues)
for _, key in ipairs({ DUE, hf.any('g') and WAKING or nil }) do
    local at = tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[SCORED_SCORE])
    if at and not (soonest and soonest < at) then soonest = at end
end
return { cpack(soonest and math.max(0, soonest - now) or nil), last }

-- == fast wait_for_work: the same for queues without limit and rate, in a store where nothing is paused, slowed down,
-- overridden or in a lane of its own. Takes and returns the same; in any other case it falls through to the script.
-- Every idle worker asks this at every hint.

local queues, used = args.queues, meta.used
if #queues == 0 or #queues > QUEUES_MAX or (tonumber(meta.quiet_until) or 0) > now or used
    and (find(used, '[rfg]') or HAS_EXCEPTIONS(used) or find(used, '[ot]') and call('ZCARD', APART) > 0) then break end
local plain, found = true, false
for i, rule in ipairs(call('HMGET', RULES, unpack(queues))) do
    local is_sound = true
    if rule then is_sound, rule = pcall(cunpack, rule) end
    plain = plain and is_sound and not find(queues[i], ODD_BYTES)
        and not (rule and (type(rule) ~= 'table' or rule[RULE_LIMIT] or rule[RULE_RATE]))
end
if not plain then break end
for i = 1, #queues do
    local prefix = PLAIN(queues[i])
    found = found or #call('ZRANGEBYLEX', READY, '[' .. prefix .. '0', '(' .. prefix .. '2', 'LIMIT', '0', '1') > 0
end
local at = not found and tonumber(call('ZRANGE', DUE, '0', '0', 'WITHSCORES')[SCORED_SCORE]) or nil
local last = call('XREVRANGE', WAKE, '+', '-', 'COUNT', '1')[1]
return { cpack(found and 0 or at and math.max(0, at - now) or nil), last and last[HINT_ID] or '0-0' }
