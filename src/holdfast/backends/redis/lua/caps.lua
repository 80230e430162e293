-- caps: limits that few claims are subject to.

-- == part caps: limits that few stores use: tasks with a dedicated lane, groups with a rate or many ready jobs, the
-- worker's own caps, and the priorities it takes.
-- lazy: built when a script first uses one of its names.

-- How many more jobs this claim may take from a dedicated lane.
function hf.lane_room(lane, claim)
    local task = lane.task
    local rule = hf.task_of(task)
    local limit, rate = rule[TASK_LIMIT], rule[TASK_RATE]
    local room, leased = UNLIMITED, hf.begun_for[task] or 0
    if rate then
        if not claim.buckets[task] then
            hf.pull_back(rate, 't' .. task)
            claim.buckets[task] = hf.allowed(rate, 't' .. task)
        end
        room = claim.buckets[task] - leased
    end
    if limit < UNLIMITED then room = math.min(room, limit - hf.running('t' .. task)) end
    return math.min(room, (claim.by_task[task] or UNLIMITED) - leased)
end

-- Adds the dedicated lanes of tasks that have ready jobs in this queue, and room.
function hf.add_apart(lanes, queue, claim)
    hf.flush()
    for _, one in ipairs(hf.tasks_apart(queue)) do
        local place = one.place
        local lane = { key = APART, prefix = place, upper = '(' .. place .. '\255', task = one.task, more = true }
        if hf.lane_room(lane, claim) > 0 then lanes[#lanes + 1] = lane end
    end
end

-- Reads only the ranks of the priorities that are claimed, unless the queue's aging orders its jobs otherwise.
function hf.narrow(lanes, queue, claim)
    local aging = hf.rule_of(queue)[RULE_AGING]
    if aging and aging >= 0 then return end
    for _, lane in ipairs(lanes) do
        lane.lower = '[' .. lane.prefix .. spack('>I4', RANK_ZERO - claim.highest)
        lane.upper = '(' .. lane.prefix .. spack('>I4', RANK_ZERO - claim.lowest + 1)
    end
end

function hf.share_apart(share, lane, claim)
    claim.tasks[lane.task] = true
    return math.min(share, hf.lane_room(lane, claim))
end

-- Whether this worker already holds the group's share.
function hf.has_share(row, claim)
    return (claim.held[hf.place_of(row[QUEUE], row[GROUP])] or 0) >= claim.by_group
end

-- Counts the jobs of each group that the worker holds before it claims.
function hf.note_held(claim)
    for _, row in ipairs(hf.held_by(claim.worker)) do
        if row[GROUP] then
            local place = hf.place_of(row[QUEUE], row[GROUP])
            claim.held[place] = (claim.held[place] or 0) + 1
        end
    end
end

function hf.note_group(row, claim)
    local place = hf.place_of(row[QUEUE], row[GROUP])
    claim.held[place] = (claim.held[place] or 0) + 1
    if claim.watched then claim.groups[place] = (claim.groups[place] or 0) + 1 end
end

-- Charges a rate for `starts` starts (GCRA).
function hf.charge(rate, scope, starts)
    local flow = hf.flow_of(scope) or { 0, 0, false }
    flow[FLOW_SPENT_UNTIL] = math.max(flow[FLOW_SPENT_UNTIL], now) + starts * hf.pace(rate)
    hf.keep_flow(scope, flow)
end

-- Charges the rates of tasks and groups for what was leased.
function hf.charge_all(claim)
    for task in pairs(claim.tasks) do
        local rate, leased = hf.task_of(task)[TASK_RATE], hf.begun_for[task]
        if rate and leased then hf.charge(rate, 't' .. task, leased) end
    end
    for place, leased in pairs(claim.groups) do
        local limit, rate = hf.group_of(place)
        if rate then hf.charge(rate, 'g' .. place, leased) end
        if rate or limit > READY_PER_GROUP_MAX then hf.touch(place) end
    end
end
