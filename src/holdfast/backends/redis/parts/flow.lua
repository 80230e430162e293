-- flow: which limits, rates, pauses and lanes are in force: an operator's word, else what the code declares.
-- A rate is {count, seconds, burst or false}. A lifted one, as high as UNLIMITED, is none.
-- A store that never had pauses, overrides, rules of tasks, buckets or letters is told so by `used` in meta, which
-- opening read: it pays no more than that.

local UNLIMITED, SERIAL_PREFIX = 1000000000, 'one-at-a-time:'
hf.any_memo, hf.pause_memo, hf.rule_memo, hf.said_memo, hf.task_memo, hf.lane_memo = {}, {}, {}, {}, {}, {}
hf.orders = { strict = true, relaxed = true }

-- What was packed as a list or a map; false where it cannot be read: it says nothing then.
function hf.read(packed)
    local is_sound, value = pcall(cunpack, packed)
    return is_sound and type(value) == 'table' and value
end

-- Are there any pauses (p), overrides (o), rules of tasks (t), buckets (f), buckets of groups (g), letters (d), changes
-- to be carried out (r), ids remembered without their jobs (m)?
function hf.any(kind)
    local there = hf.any_memo[kind]
    if there == nil then
        there = meta[7] and string.find(meta[7], kind, 1, true) and hf.count_of(kind) > 0 or false
        hf.any_memo[kind] = there
    end
    return there
end

function hf.paused(scope)
    if not hf.any('p') then return false end
    if hf.pause_memo[scope] == nil then hf.pause_memo[scope] = call('HEXISTS', PAUSES, scope) == 1 end
    return hf.pause_memo[scope]
end

-- Limit and rate in force, from what was declared.
function hf.in_force(scope, limit, rate)
    if hf.any('o') then
        local said = hf.said_memo[scope]
        if said == nil then
            local packed = call('HGET', OVERRIDES, scope)
            said = packed and hf.sound_override(hf.read(packed))
            hf.said_memo[scope] = said
        end
        if said then limit, rate = said[1] or limit, said[2] or rate end
    end
    return limit or UNLIMITED, rate and rate[1] < UNLIMITED and rate
end

-- {group limit, order, limit, rate, group rate, aging} as declared of a queue, with the limit and rate in force by
-- name. An undeclared one is strict.
function hf.rule_of(queue)
    local rule = hf.rule_memo[queue]
    if not rule then
        local packed = call('HGET', RULES, queue)
        rule = packed and hf.read(packed)
        if rule and not (type(rule[1]) == 'number' and rule[1] >= 0 and rule[1] % 1 == 0 and hf.orders[rule[2]]) then
            rule = false
        end
        if not rule then
            rule = { 1, 'strict' }
        elseif rule[3] or rule[4] or rule[5] or rule[6] then
            hf.mend_rule(rule)
        end
        rule.limit, rule.rate = hf.in_force('q' .. queue, rule[3], rule[4])
        hf.rule_memo[queue] = rule
    end
    return rule
end

-- {limit, rate, whether it is apart, how many finished jobs are kept or nil} of a task.
function hf.task_of(task)
    local known = hf.task_memo[task]
    if not known then
        local packed = hf.any('t') and call('HGET', TASKS, task)
        local rule = packed and hf.sound_task(hf.read(packed)) or {}
        local limit, rate = hf.in_force('t' .. task, rule[1], rule[2])
        local said = hf.said_memo['t' .. task]
        known = { limit, rate, rule[3] or said and said[3] or limit < UNLIMITED or rate, rule[4] or nil }
        hf.task_memo[task] = known
    end
    return known
end

function hf.lane_of(row)
    local lane = hf.lane_memo[row[TASK]]
    if lane == nil then
        lane = hf.paused('t' .. row[TASK]) and 2 or hf.task_of(row[TASK])[3] and 3 or false
        hf.lane_memo[row[TASK]] = lane
    end
    return lane or (row[GROUP] and 1 or 0)
end
