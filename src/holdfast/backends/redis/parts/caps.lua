-- caps: what a claim heeds in few stores: tasks apart, groups with a rate or many ready jobs, the worker's own caps.
-- seldom: built when a script first uses one of its names.

-- How many more of a lane apart this claim may take.
function hf.lane_room(lane, claim)
    local task = lane.task
    local limit, rate = unpack(hf.task_of(task), 1, 2)
    local room, leased = UNLIMITED, hf.begun_for[task] or 0
    if rate then
        if not claim.buckets[task] then
            hf.set_back(rate, 't' .. task)
            claim.buckets[task] = hf.allowed(rate, 't' .. task)
        end
        room = claim.buckets[task] - leased
    end
    if limit < UNLIMITED then room = math.min(room, limit - hf.running('t' .. task)) end
    return math.min(room, (claim.by_task[task] or UNLIMITED) - leased)
end

-- The lanes of tasks apart that have ready jobs in the queue, and room, join the others.
function hf.add_apart(lanes, queue, claim)
    hf.flush()
    for _, one in ipairs(hf.tasks_apart(queue)) do
        local lane = { key = APART, prefix = one[2], upper = '(' .. one[2] .. '\255', task = one[1], more = true }
        if hf.lane_room(lane, claim) > 0 then lanes[#lanes + 1] = lane end
    end
end

function hf.share_apart(share, lane, claim)
    claim.tasks[lane.task] = true
    return math.min(share, hf.lane_room(lane, claim))
end

-- Has the job's group its share of this worker?
function hf.has_share(row, claim)
    return (claim.held[hf.place_of(row[QUEUE], row[GROUP])] or 0) >= claim.by_group
end

-- What the worker holds of each group before it claims.
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

-- So many started.
function hf.charge(rate, scope, starts)
    local flow = hf.flow_of(scope) or { 0, 0, false }
    flow[1] = math.max(flow[1], now) + starts * hf.pace(rate)
    hf.keep_flow(scope, flow)
end

-- Charges what was leased from the buckets of tasks and groups.
function hf.charge_all(claim)
    for task in pairs(claim.tasks) do
        local rate, leased = hf.task_of(task)[2], hf.begun_for[task]
        if rate and leased then hf.charge(rate, 't' .. task, leased) end
    end
    for place, leased in pairs(claim.groups) do
        local limit, rate = hf.group_of(place)
        if rate then hf.charge(rate, 'g' .. place, leased) end
        if rate or limit > READY_PER_GROUP_MAX then hf.touch(place) end
    end
end
