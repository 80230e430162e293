-- rearrange: apply changed rules to jobs that are already stored.

-- == script rearrange: continue what changed rules left to do.
-- args: now, limit
-- `limit`: how many jobs and groups. Returns 1 if there is more.
-- Concurrency: a script runs alone, and its progress is recorded in the same step.

if sealed then return hf.refused_sealed() end
local more = hf.rearrange(args.limit)
hf.close()
return { more and 1 or 0 }

-- == part rule_changes: apply a changed rule to ready jobs and groups, step by step. `changes` records what is left:
--   t and a task → jobs must leave the dedicated lane of this task, which no longer has one
--   l → the member of `ready` up to which lanes 0 and 1 were searched for jobs that belong elsewhere
--   p → the same for lane 2, the parked jobs
--   q and a queue → the place up to which its groups were fitted to its rule
--   g and a place → a group that a step had no time for
-- A change that arrives meanwhile restarts the searches: every job in a wrong lane is always after a mark, or in a
-- `t`. `r` in meta's `used` marks that something is left; it is removed with the last of it, so that other calls pay
-- nothing. Bounded in jobs moved, jobs checked and groups. Concurrency: a script runs alone.
-- lazy: built when a script first uses one of its names.

local LOOKS_PER_JOB, LOOKS_MIN, STEP_MAX = 5, 100, 500
local GROUPS_MAX, FITTED_MAX = 200, 400 -- per step: groups, and jobs moved in them beyond one each
hf.fitted, hf.mark_memo = {}, {}

-- Drops what was cached of rules, pauses and overrides.
function hf.forget_rules()
    hf.any_memo, hf.override_memo, hf.rule_memo, hf.task_memo, hf.lane_memo, hf.pause_memo = {}, {}, {}, {}, {}, {}
end

function hf.leave_for_later(field)
    hf.use('r')
    hf.mark_memo[field], hf.fitted[sub(field, 2)] = nil, nil
    call('HSET', CHANGES, field, '')
end

-- A task's jobs now belong in another lane (2, 3, or 0 for 0 and 1).
function hf.lane_changed(task, was, is)
    if was ~= is then hf.leave_for_later(was == 3 and 't' .. task or was == 2 and 'p' or 'l') end
end

function hf.lane_of_task(task)
    return TASK_LANE(task) or 0
end

-- Members of `ready` after `after` in these lanes, by jumping from queue to queue; and whether those were all.
function hf.lane_members(first, last, after, most)
    local found, from = {}, after ~= '' and '(' .. after or '-'
    for _ = 1, QUEUES_SEEN_MAX do
        local one = #found < most and call('ZRANGEBYLEX', READY, from, '+', 'LIMIT', 0, 1)[1]
        if not one then return found, #found < most end
        local ends = string.find(one, '\0', 1, true)
        local lane = ends and byte(one, ends + 1) or 0
        if not ends then
            from = '(' .. one
        elseif lane < byte(first) then
            from = '[' .. sub(one, 1, ends) .. first
        elseif lane > byte(last) then
            from = '[' .. sub(one, 1, ends - 1) .. '\1'
        else
            local upper = '(' .. sub(one, 1, ends) .. (last + 1)
            for _, member in ipairs(call('ZRANGEBYLEX', READY, from, upper, 'LIMIT', 0, most - #found)) do
                found[#found + 1] = member
            end
            from = '[' .. sub(one, 1, ends) .. (last + 1)
        end
    end
    return found, true
end

-- Moves at most `limit` jobs after the mark that are in a wrong lane, and advances the mark. Returns how many.
function hf.look_through(field, first, last, mark, limit)
    hf.flush()
    local most = math.max(LOOKS_PER_JOB * limit, LOOKS_MIN)
    local members, at_end = hf.lane_members(first, last, mark, most)
    local ids, moved = {}, 0
    for i, member in ipairs(members) do ids[i] = sub(member, string.find(member, '\0', 1, true) + 30) end
    local rows, kept = hf.rows_at('ready', READY, members, ids, 'r')
    mark = members[#members] or mark
    for i, row in ipairs(rows) do
        if hf.lane_of(row) ~= row[LANE] % 4 then
            if moved == limit then
                mark, at_end = kept[i - 1] or mark, false
                break
            end
            hf.change_lane(row)
            moved = moved + 1
        end
        if moved == limit then mark = kept[i] end
    end
    if at_end then call('HDEL', CHANGES, field) else call('HSET', CHANGES, field, mark) end
    return moved
end

-- Moves jobs out of the dedicated lane of a task that no longer has one. Returns how many.
function hf.empty_lane(field, task, limit)
    hf.flush()
    local moved = 0
    if hf.lane_of_task(task) ~= 3 then
        hf.each_queue(APART, '', function(prefix)
            local place = prefix .. hf.escape(task)
            if moved == limit then return end
            local members = call('ZRANGEBYLEX', APART, '[' .. place, '(' .. place .. '\255', 'LIMIT', 0, limit - moved)
            local ids = hf.ids_after(members, #place + 28)
            for _, row in ipairs(hf.rows_at('apart', APART, members, ids, 'r')) do hf.change_lane(row) end
            moved = moved + #members
        end)
    end
    if moved < limit then call('HDEL', CHANGES, field) end
    return moved
end

-- Fits one group to the current rules. Jobs that became ready while it was strict are added to staged, which lists the
-- ready jobs of other groups.
function hf.fit_group(place)
    hf.flush()
    hf.queue_at[place] = hf.queue_at[place] or hf.plain(sub(place, 1, string.find(place, '\0', 1, true) - 1))
    hf.fitted[place] = true
    local _, _, strict = hf.group_of(place)
    if not strict then
        for _, row in ipairs(hf.ready_of(place)) do
            if row[LANE] < 8 then
                local was_in, had_key = hf.leave(row)
                row[LANE] = row[LANE] + 8
                hf.enter(row, was_in, had_key)
            end
        end
    end
    hf.refill({ place })
    hf.flush()
end

-- The place of the next group after this one that has jobs waiting or in play; nil at the end of the queue.
function hf.place_after(queue, after)
    local prefix = hf.escape(queue)
    local from = after ~= '' and '(' .. after .. '\255' or '[' .. prefix
    local upper, first = '(' .. sub(prefix, 1, -2) .. '\1', nil
    for name, key in pairs({ waiting = WAITING, play = PLAY }) do
        local member = call('ZRANGEBYLEX', key, from, upper, 'LIMIT', 0, 1)[1]
        while member and not hf.place_in(member) do -- nothing of ours, and gone from here then
            hf.set_aside(name, key, member)
            member = call('ZRANGEBYLEX', key, from, upper, 'LIMIT', 0, 1)[1]
        end
        local place = member and hf.place_in(member)
        if place and (not first or hf.precedes(place, first)) then first = place end
    end
    return first
end

-- Fits at most `limit` of a queue's groups to its rule.
function hf.fit_groups(field, queue, mark, limit)
    local begun, fitted = hf.moved, 0
    limit = math.min(limit, GROUPS_MAX)
    while fitted < limit and hf.moved - begun < FITTED_MAX do
        local place = hf.place_after(queue, mark)
        if not place then
            call('HDEL', CHANGES, field)
            return
        end
        hf.fit_group(place)
        mark, fitted = place, fitted + 1
    end
    call('HSET', CHANGES, field, mark)
end

-- Whether a group is fitted to the current rules.
function hf.is_fitted(queue, place)
    if hf.fitted[place] then return true end
    local mark = hf.mark_memo['q' .. queue]
    if mark == nil then
        mark = call('HGET', CHANGES, 'q' .. queue)
        hf.mark_memo['q' .. queue] = mark
    end
    if mark and hf.precedes(mark, place) then return false end
    return call('HEXISTS', CHANGES, 'g' .. place) == 0
end

-- Continues with at most `limit` jobs and groups. Returns whether there is more.
function hf.rearrange(limit)
    if not (meta.used and string.find(meta.used, 'r', 1, true)) then return false end
    local cursor, left = '0', math.min(limit, STEP_MAX) -- the server does nothing else meanwhile
    for _ = 1, QUEUES_SEEN_MAX do
        local found = call('HSCAN', CHANGES, cursor, 'COUNT', 100)
        for i = 1, #found[SCAN_ENTRIES], 2 do
            if left <= 0 then break end
            local field, mark = found[SCAN_ENTRIES][i], found[SCAN_ENTRIES][i + 1]
            local kind, name = sub(field, 1, 1), sub(field, 2)
            if kind == 't' then
                left = left - hf.empty_lane(field, name, left)
            elseif kind == 'l' then
                left = left - hf.look_through(field, '0', '1', mark, left)
            elseif kind == 'p' then
                left = left - hf.look_through(field, '2', '2', mark, left)
            elseif kind == 'q' then
                hf.fit_groups(field, name, mark, left)
                left = 0
            else
                call('HDEL', CHANGES, field)
                if hf.place_in(name) then hf.fit_group(name) end
                left = left - 1
            end
        end
        cursor = found[SCAN_CURSOR]
        if left <= 0 or cursor == '0' or #found[SCAN_ENTRIES] > 0 then break end
    end
    hf.refill_touched()
    hf.mark_memo = {}
    if call('HLEN', CHANGES) > 0 then return true end
    hf.no_longer_use('r')
    return false
end
