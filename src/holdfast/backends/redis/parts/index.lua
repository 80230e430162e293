-- index: every order in which jobs are looked up, derived from the job's own record in ONE place, so that none of them
-- can say something else than the job does. leave before a job's fields change, enter after.
-- Changes are gathered and written together by flush; who reads an index calls flush first. Scores are text: the server
-- would format a number anew for every member.

hf.pending, hf.key_changes, hf.score_texts = {}, {}, {}
hf.touched, hf.touched_order, hf.stirred, hf.put_off = {}, {}, {}, {}
-- leases that ended and began in this script, by queue and by task
hf.ended_of, hf.ended_for, hf.begun_of, hf.begun_for, hf.any_kept = {}, {}, {}, {}, nil
local TURN_ZERO = 4503599627370496 -- turns go down to minus this, and up to it

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

function hf.list_ready(row, on)
    local lane, priority = row[LANE], row[PRIORITY]
    if lane > 3 then
        if lane % 8 > 3 then priority = 0 end
        if lane > 7 then hf.put(STAGED, hf.staged_member(row), on) end
        lane = lane % 4
    end
    local rank = spack('>I4I8I8d', 2147483648 - priority, row[TURN] + TURN_ZERO, row[SEQ], row[DUE_AT]) .. row[ID]
    if lane == 3 then
        hf.put(APART, hf.place_of(row[QUEUE], row[TASK]) .. rank, on)
    else
        hf.put(READY, hf.lane_prefix(row[QUEUE], lane) .. rank, on)
    end
end

function hf.running_member(row)
    return hf.escape(row[WORKER]) .. spack('>I8I8', row[FENCE], row[SEQ]) .. hf.escape(row[QUEUE]) .. row[ID]
end

function hf.list(row, present)
    local state, on = row[STATE], present and '0'
    if state == 'r' then
        hf.list_ready(row, on)
    elseif state == 'x' then -- claim alone lists them here
        local queue, task = row[QUEUE], row[TASK]
        hf.put(RUNNING, hf.running_member(row), on)
        hf.ended_of[queue], hf.ended_for[task] = (hf.ended_of[queue] or 0) + 1, (hf.ended_for[task] or 0) + 1
    elseif state == 'w' then
        local rank = spack('>I4I8', 2147483648 - row[PRIORITY], row[SEQ])
        hf.put(WAITING, hf.place_of(row[QUEUE], row[GROUP]) .. (row[HELD] and '0' or '1') .. rank .. row[ID], on)
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
        if state ~= 'd' and (not present or hf.any('t')) then hf.list_kept(row, present) end
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
    return hf.in_play(row), row[KEY] and hf.holds(row)
end

function hf.enter(row, was_in, had_key)
    hf.list(row, true)
    local is_in = hf.in_play(row)
    if was_in ~= is_in then
        if was_in then
            hf.put(PLAY, was_in .. row[ID], false)
            hf.touch(was_in)
        end
        if is_in then hf.put(PLAY, is_in .. row[ID], '0') end
    end
    if row[STATE] == 'w' then hf.touch(hf.place_of(row[QUEUE], row[GROUP])) end
    if row[STATE] == 'r' then hf.stirred[row[QUEUE]] = true end
    if row[KEY] then hf.note_key(row, had_key) end
    hf.changed[row[ID]] = row
end
