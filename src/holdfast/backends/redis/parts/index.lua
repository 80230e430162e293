-- index: every order in which jobs are looked up, derived from the job's own record in ONE place, so that none of them
-- can say something else than the job does. leave before a job's fields change, enter after.
-- Changes are gathered and written together by flush; who reads an index calls flush first. Scores are text: the server
-- would format a number anew for every member.

hf.pending, hf.live_changes = {}, {}
hf.touched, hf.touched_order, hf.stirred, hf.put_off = {}, {}, {}, {}
hf.score_texts = {}
local LIVE_STATES = { s = true, w = true, r = true, x = true }

function hf.score_of(number)
    local text = hf.score_texts[number]
    if not text then
        text = format('%.17g', number)
        hf.score_texts[number] = text
    end
    return text
end

function hf.put(key, member, score) -- score false: remove
    local members = hf.pending[key]
    if not members then
        members = {}
        hf.pending[key] = members
    end
    members[member] = score
end

function hf.flush()
    for key, members in pairs(hf.pending) do
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
        hf.in_pieces('ZREM', key, gone, m)
        hf.in_pieces('ZADD', key, add, n)
        hf.pending[key] = nil
    end
end

function hf.touch(place)
    if not hf.touched[place] then
        hf.touched[place] = true
        hf.touched_order[#hf.touched_order + 1] = place
    end
end

-- Beginnings of members, made once per queue.
hf.lane_prefixes, hf.finished_prefixes = { {}, {}, {} }, { o = {}, c = {}, d = {} }

function hf.lane_prefix(queue, lane)
    local made = hf.lane_prefixes[lane + 1]
    if not made[queue] then made[queue] = hf.escape(queue) .. lane end
    return made[queue]
end

function hf.finished_prefix(queue, state)
    local made = hf.finished_prefixes[state]
    if not made[queue] then made[queue] = state .. hf.escape(queue) end
    return made[queue]
end

function hf.ready_member(row)
    local rank = spack('>I4I8I8d', 2147483648 - row[PRIORITY], row[TURN], row[SEQ], row[DUE_AT])
    return hf.lane_prefix(row[QUEUE], row[LANE]) .. rank .. row[ID]
end

function hf.running_member(row)
    return hf.escape(row[WORKER]) .. spack('>I8I8', row[FENCE], row[SEQ]) .. hf.escape(row[QUEUE]) .. row[ID]
end

function hf.waiting_member(row)
    local rank = spack('>I4I8', 2147483648 - row[PRIORITY], row[SEQ])
    return hf.place_of(row[QUEUE], row[GROUP]) .. (row[HELD] and '0' or '1') .. rank .. row[ID]
end

function hf.list(row, present)
    local state, on = row[STATE], present and '0'
    if state == 'r' then
        hf.put(READY, hf.ready_member(row), on)
    elseif state == 'x' then
        hf.put(RUNNING, hf.running_member(row), on)
    elseif state == 'w' then
        hf.put(WAITING, hf.waiting_member(row), on)
    elseif state == 's' then
        local rank = spack('>dI8', math.max(0, row[DUE_AT]), row[SEQ])
        hf.put(SCHEDULED, hf.place_of(row[QUEUE], row[GROUP]) .. (row[HELD] and '0' or '1') .. rank .. row[ID], on)
        local member = spack('>I8', row[SEQ]) .. row[ID]
        hf.put(DUE, member, present and hf.score_of(row[DUE_AT]))
        hf.put_off[member] = present and row[QUEUE]
    else
        hf.put(FINISHED, hf.finished_prefix(row[QUEUE], state) .. spack('>I8', row[SEQ]) .. row[ID], on)
        if row[PRUNE_AT] then
            hf.put(PRUNABLE, row[ID], present and hf.score_of(row[PRUNE_AT]))
        end
    end
    if row[EXPIRES_AT] and (state == 'r' or state == 'w' or state == 's') then
        hf.put(EXPIRING, row[ID], present and hf.score_of(row[EXPIRES_AT]))
    end
end

-- The place of the group in which the job is in play, or nil.
function hf.in_play(row)
    local state = row[STATE]
    if row[GROUP] and (state == 'r' or state == 'x' or (state == 's' and row[HELD])) then
        return hf.place_of(row[QUEUE], row[GROUP])
    end
end

function hf.leave(row)
    hf.list(row, false)
    return hf.in_play(row), LIVE_STATES[row[STATE]]
end

function hf.enter(row, was_in, was_live)
    hf.list(row, true)
    local is_in, is_live = hf.in_play(row), LIVE_STATES[row[STATE]]
    if was_in ~= is_in then
        if was_in then
            hf.put(PLAY, was_in .. row[ID], false)
            hf.touch(was_in)
        end
        if is_in then hf.put(PLAY, is_in .. row[ID], '0') end
    end
    if row[STATE] == 'w' then hf.touch(hf.place_of(row[QUEUE], row[GROUP])) end
    if row[STATE] == 'r' then hf.stirred[row[QUEUE]] = true end
    if row[KEY] and was_live ~= is_live then hf.live_changes[hf.logical_of(row)] = is_live and row[ID] or false end
    hf.changed[row[ID]] = row
end

-- leave and enter in one, for the step most often taken with groups: its member and place are known already, its key
-- stays live and its expiry stays listed.
function hf.ready_after_waiting(row, member, place)
    row[STATE] = 'r'
    hf.put(WAITING, member, false)
    hf.put(READY, hf.ready_member(row), '0')
    hf.put(PLAY, place .. row[ID], '0')
    hf.stirred[row[QUEUE]] = true
    hf.changed[row[ID]] = row
end

-- The live job that has this key, or nil.
function hf.live_with(logical)
    local id = hf.live_changes[logical]
    if id == nil then id = call('HGET', LIVE, logical) end
    return id or nil
end

function hf.save_live()
    for logical, id in pairs(hf.live_changes) do
        if id then call('HSET', LIVE, logical, id) else call('HDEL', LIVE, logical) end
    end
    hf.live_changes = {}
end
