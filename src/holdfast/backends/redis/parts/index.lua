-- index: every order in which jobs are looked up, derived from the job's own record in ONE place, so that none of them
-- can say something else than the job does. leave before a job's fields change, enter after.
-- Changes are gathered and written together by flush; who reads an index calls flush first. Scores are text: the server
-- would format a number anew for every member.

local pending, live_changes = {}, {}
local touched, touched_order, stirred, put_off = {}, {}, {}, {}
local score_texts = {}
local LIVE_STATES = { s = true, w = true, r = true, x = true }

local function score_of(number)
    local text = score_texts[number]
    if not text then
        text = format('%.17g', number)
        score_texts[number] = text
    end
    return text
end

local function put(key, member, score) -- score false: remove
    local members = pending[key]
    if not members then
        members = {}
        pending[key] = members
    end
    members[member] = score
end

local function flush()
    for key, members in pairs(pending) do
        local add, n, gone, m = {}, 0, {}, 0
        for member, score in pairs(members) do
            if score then
                add[n + 1], add[n + 2] = score, member
                n = n + 2
            else
                m = m + 1
                gone[m] = member
            end
        end
        in_pieces('ZREM', key, gone, m)
        in_pieces('ZADD', key, add, n)
        pending[key] = nil
    end
end

local function touch(place)
    if not touched[place] then
        touched[place] = true
        touched_order[#touched_order + 1] = place
    end
end

-- Beginnings of members, made once per queue.
local lane_prefixes, finished_prefixes = { {}, {}, {} }, { o = {}, c = {}, d = {} }

local function lane_prefix(queue, lane)
    local made = lane_prefixes[lane + 1]
    if not made[queue] then made[queue] = escape(queue) .. lane end
    return made[queue]
end

local function finished_prefix(queue, state)
    local made = finished_prefixes[state]
    if not made[queue] then made[queue] = state .. escape(queue) end
    return made[queue]
end

local function ready_member(row)
    local rank = spack('>I4I8I8d', 2147483648 - row[PRIORITY], row[TURN], row[SEQ], row[DUE_AT])
    return lane_prefix(row[QUEUE], row[LANE]) .. rank .. row[ID]
end

local function running_member(row)
    return escape(row[WORKER]) .. spack('>I8', row[FENCE]) .. escape(row[QUEUE]) .. row[ID]
end

local function waiting_member(row)
    local rank = spack('>I4I8', 2147483648 - row[PRIORITY], row[SEQ])
    return place_of(row[QUEUE], row[GROUP]) .. (row[HELD] and '0' or '1') .. rank .. row[ID]
end

local function list(row, present)
    local state, on = row[STATE], present and '0'
    if state == 'r' then
        put(READY, ready_member(row), on)
    elseif state == 'x' then
        put(RUNNING, running_member(row), on)
    elseif state == 'w' then
        put(WAITING, waiting_member(row), on)
    elseif state == 's' then
        local rank = spack('>dI8', math.max(0, row[DUE_AT]), row[SEQ])
        put(SCHEDULED, place_of(row[QUEUE], row[GROUP]) .. (row[HELD] and '0' or '1') .. rank .. row[ID], on)
        local member = spack('>I8', row[SEQ]) .. row[ID]
        put(DUE, member, present and score_of(row[DUE_AT]))
        put_off[member] = present and row[QUEUE]
    else
        put(FINISHED, finished_prefix(row[QUEUE], state) .. spack('>I8', row[SEQ]) .. row[ID], on)
        if row[PRUNE_AT] then
            put(PRUNABLE, row[ID], present and score_of(row[PRUNE_AT]))
        end
    end
    if row[EXPIRES_AT] and (state == 'r' or state == 'w' or state == 's') then
        put(EXPIRING, row[ID], present and score_of(row[EXPIRES_AT]))
    end
end

-- The place of the group in which the job is in play, or nil.
local function in_play(row)
    local state = row[STATE]
    if row[GROUP] and (state == 'r' or state == 'x' or (state == 's' and row[HELD])) then
        return place_of(row[QUEUE], row[GROUP])
    end
end

local function leave(row)
    list(row, false)
    return in_play(row), LIVE_STATES[row[STATE]]
end

local function enter(row, was_in, was_live)
    list(row, true)
    local is_in, is_live = in_play(row), LIVE_STATES[row[STATE]]
    if was_in ~= is_in then
        if was_in then
            put(PLAY, was_in .. row[ID], false)
            touch(was_in)
        end
        if is_in then put(PLAY, is_in .. row[ID], '0') end
    end
    if row[STATE] == 'w' then touch(place_of(row[QUEUE], row[GROUP])) end
    if row[STATE] == 'r' then stirred[row[QUEUE]] = true end
    if row[KEY] and was_live ~= is_live then live_changes[logical_of(row)] = is_live and row[ID] or false end
    changed[row[ID]] = row
end

-- leave and enter in one, for the step most often taken with groups: its member and place are known already, its key
-- stays live and its expiry stays listed.
local function ready_after_waiting(row, member, place)
    row[STATE] = 'r'
    put(WAITING, member, false)
    put(READY, ready_member(row), '0')
    put(PLAY, place .. row[ID], '0')
    stirred[row[QUEUE]] = true
    changed[row[ID]] = row
end

-- The live job that has this key, or nil.
local function live_with(logical)
    local id = live_changes[logical]
    if id == nil then id = call('HGET', LIVE, logical) end
    return id or nil
end

local function save_live()
    for logical, id in pairs(live_changes) do
        if id then call('HSET', LIVE, logical, id) else call('HDEL', LIVE, logical) end
    end
    live_changes = {}
end
