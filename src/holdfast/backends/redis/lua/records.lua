-- records: a job's record, and every index derived from it.

-- == part rows: read jobs, cache them while the script runs, and write them back once.
-- Takes ids. Nothing is written before save_rows, which the verb calls last. Concurrency: a script runs alone.

local RECORD_HEAD_BYTES = 3 -- of the packed array: the first field follows

hf.cache, hf.changed = {}, {}
hf.live_states = { s = true, w = true, r = true, x = true }

-- Decodes the records found for ids[from..upto]. Raises an error at one that cannot be unpacked or has a value of the
-- wrong type; one that makes no sense otherwise becomes false.
-- Fields are unpacked one by one from behind the array's header, so they go into a table of the right
-- size at once: unpacked as an array, their table grows six times, which takes as long again.
function hf.open_rows(found, ids, from, upto)
    local cache, open = hf.cache, cmsgpack.unpack_limit
    for i = from, upto do
        local packed, id = found[i - from + 1], ids[i]
        if packed then
            local row = UNPACKED(packed, open)
            cache[id] = row[ID] == id and ROW_IS_SOUND and row or false
        end
    end
end

-- Decodes all at once, which is cheaper; one by one only if one of them fails.
function hf.open_readable(found, ids, from, upto)
    if pcall(hf.open_rows, found, ids, from, upto) then return end
    for i = from, upto do
        if not pcall(hf.open_rows, { found[i - from + 1] }, ids, i, i) then hf.cache[ids[i]] = false end
    end
end

function hf.load_rows(ids)
    local missing, n = {}, 0
    for i = 1, #ids do
        local id = ids[i]
        if hf.cache[id] == nil then
            n = n + 1
            missing[n] = id
            hf.cache[id] = false
        end
    end
    for from = 1, n, ARGUMENTS_MAX do
        local upto = math.min(n, from + ARGUMENTS_MAX - 1)
        hf.open_readable(call('HMGET', JOBS, unpack(missing, from, upto)), missing, from, upto)
    end
end

-- The job, or false if there is none or it cannot be read.
function hf.row_of(id)
    if hf.cache[id] == nil then hf.load_rows({ id }) end
    return hf.cache[id]
end

-- The job, if it is running under exactly this token; else false.
function hf.fenced(id, token)
    local row = hf.row_of(id)
    return row and row[STATE] == 'x' and row[TOKEN] == token and row
end

function hf.in_pieces(command, key, values, n)
    for from = 1, n, ARGUMENTS_MAX do
        call(command, key, unpack(values, from, math.min(n, from + ARGUMENTS_MAX - 1)))
    end
end

-- Writes back what changed; returns the packed records by id.
function hf.save_rows()
    local packed, values, n = {}, {}, 0
    for id, row in pairs(hf.changed) do
        local text = cpack(row)
        packed[id] = text
        values[n + 1], values[n + 2] = id, text
        n = n + 2
    end
    hf.in_pieces('HSET', JOBS, values, n)
    hf.changed = {}
    return packed
end

-- == part latest_seq: the number of the latest job, found from the jobs themselves.
-- lazy: built when a script first uses one of its names.

function hf.latest_seq()
    local latest = call('ZREVRANGEBYSCORE', SEQS, COUNTED_MAX - 1, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
    return tonumber(latest[SCORED_SCORE]) or 0
end

-- == part validation: whether an unpacked value has the types it should. One that does not is treated as absent, as a
-- whole or in that position; flaws() lists it. Job records are checked where they are decoded.
-- lazy: built when a script first uses one of its names.

local TIME_MAX = 1e15 -- later than any time that makes sense

function hf.is_number(value) return type(value) == 'number' and value >= -1e300 end -- which what is no number is not

function hf.sound_limit(limit) return hf.is_number(limit) and limit >= 0 and limit % 1 == 0 and limit end

function hf.sound_rate(rate)
    if type(rate) ~= 'table' then return false end
    local count, seconds, burst = rate[RATE_COUNT], rate[RATE_SECONDS], rate[RATE_BURST] or false
    return hf.is_number(count) and count > 0 and hf.is_number(seconds) and seconds > 0 and seconds < TIME_MAX
        and (not burst or hf.is_number(burst) and burst >= 1) and { count, seconds, burst }
end

function hf.repair_rule(rule)
    rule[RULE_LIMIT], rule[RULE_RATE] = hf.sound_limit(rule[RULE_LIMIT]), hf.sound_rate(rule[RULE_RATE])
    rule[RULE_GROUP_RATE] = hf.sound_rate(rule[RULE_GROUP_RATE])
    rule[RULE_AGING] = hf.is_number(rule[RULE_AGING]) and rule[RULE_AGING] < TIME_MAX and rule[RULE_AGING]
    local window = rule[RULE_ORDER_WINDOW]
    rule[RULE_ORDER_WINDOW] = hf.is_number(window) and window > 0 and window < TIME_MAX and window
end

-- An operator's override; false if it cannot be read.
function hf.sound_override(said)
    if not said then return false end
    local weight = hf.sound_limit(said[OVERRIDE_WEIGHT])
    return {
        hf.sound_limit(said[OVERRIDE_LIMIT]), hf.sound_rate(said[OVERRIDE_RATE]), said[OVERRIDE_APART] == true,
        weight and weight > 0 and weight,
    }
end

function hf.sound_task(rule)
    if not rule then return false end
    local limit, rate = hf.sound_limit(rule[TASK_LIMIT]), hf.sound_rate(rule[TASK_RATE])
    return { limit, rate, rule[TASK_APART] == true, hf.sound_limit(rule[TASK_RETAIN_COUNT]) }
end

local function is_time(value) return type(value) == 'number' and value >= -TIME_MAX and value < TIME_MAX end

-- A rate's state (GCRA).
function hf.sound_flow(flow)
    return flow and is_time(flow[FLOW_SPENT_UNTIL]) and is_time(flow[FLOW_SHUT_UNTIL])
        and (not flow[FLOW_WAKES_AT] or is_time(flow[FLOW_WAKES_AT])) and flow
end

function hf.sound_letter(letter)
    return letter and type(letter.id) == 'string' and type(letter.task) == 'string' and type(letter.args) == 'string'
        and hf.is_number(letter.failed_at) and hf.is_number(letter.first_failed_at)
        and hf.is_number(letter.failure_count) and hf.is_number(letter.cycles) and type(letter.history) == 'table'
        and (letter.error == nil or type(letter.error) == 'table')
        and (letter.revive_at == nil or hf.is_number(letter.revive_at)) and letter
end

function hf.sound_revival(revival)
    return revival and hf.is_number(revival.cycles) and hf.is_number(revival.after) and hf.is_number(revival.factor)
        and hf.is_number(revival.cap) and revival
end

-- A worker's last numbered call and its answers.
function hf.sound_call(last)
    return last and hf.is_number(last[CALL_NUMBER]) and last[CALL_NUMBER] < COUNTED_MAX
        and type(last[CALL_ANSWERS]) == 'string' and last
end

-- == part index: every order in which jobs are looked up, derived from the job's own record in ONE place, so that no
-- index can disagree with the job. Call leave before a job's fields change and enter after. Changes are collected and
-- written together by flush; call flush before reading an index. Scores are text: the server would format a number
-- anew for every member.

hf.pending, hf.key_changes, hf.score_texts = {}, {}, {}
hf.touched, hf.touched_order, hf.ordered, hf.to_wake, hf.postponed = {}, {}, {}, {}, {}
-- Leases that ended and began in this script, by queue and by task.
hf.ended_of, hf.ended_for, hf.begun_of, hf.begun_for, hf.any_kept = {}, {}, {}, {}, nil
local TURN_ZERO = 4503599627370496 -- turns range from minus this to plus this
local RANK_ZERO = 2147483648 -- a rank is this minus the priority: the highest priority sorts first

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

-- `ordered`: a job with an order came in, so others may have to make way.
function hf.touch(place, ordered)
    if ordered then hf.ordered[place] = true end
    if not hf.touched[place] then
        hf.touched[place] = true
        hf.touched_order[#hf.touched_order + 1] = place
    end
end

-- Member prefixes, built once per queue.
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
    local rank = READY_RANK(row, priority) .. row[ID]
    if lane == 3 then
        hf.put(APART, hf.place_of(row[QUEUE], row[TASK]) .. rank, on)
    else
        hf.put(READY, hf.lane_prefix(row[QUEUE], lane) .. rank, on)
    end
end

function hf.running_member(row)
    return RUNNING_MEMBER(hf.escape(row[WORKER]), row, hf.escape(row[QUEUE]))
end

-- The place in its group that its caller gave a job; false without one.
function hf.order_of(row)
    local terms = row[TERMS]
    return terms and terms ~= true and terms[TERMS_ORDER] or false
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
        local place, order = hf.place_of(row[QUEUE], row[GROUP]), hf.order_of(row)
        hf.put(WAITING, WAITING_MEMBER(place, (order and ORDER_BYTES(order) or ''), row), on)
    elseif state == 's' then
        local rank = spack('>dI8', math.max(0, row[DUE_AT]), row[SEQ])
        hf.put(SCHEDULED, hf.place_of(row[QUEUE], row[GROUP]) .. (row[HELD] and '0' or '1') .. rank .. row[ID], on)
        local member = spack('>I8', row[SEQ]) .. row[ID]
        hf.put(DUE, member, present and hf.score_of(row[DUE_AT]))
        hf.postponed[member] = present and row[QUEUE]
        if row[GROUP] and hf.order_of(row) and not row[HELD] and row[FENCE] == 0 then hf.list_ordered(row, on) end
    else
        hf.put(FINISHED, FINISHED_MEMBER(hf.finished_prefix(row[QUEUE], state), row), on)
        if row[PRUNE_AT] then
            hf.put(PRUNABLE, row[ID], present and hf.score_of(row[PRUNE_AT]))
        end
        if state ~= 'd' and (not present or hf.any('t')) then hf.list_kept(row, present) end
    end
    if row[EXPIRES_AT] and (state == 'r' or state == 'w' or state == 's') then
        hf.put(EXPIRING, row[ID], present and hf.score_of(row[EXPIRES_AT]))
    end
end

-- The place of the group in which the job counts as in play, or nil.
function hf.in_play(row)
    local state = row[STATE]
    if row[GROUP] and (state == 'r' or state == 'x' or (row[HELD] and (state == 's' or state == 'd'))) then
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
    if row[STATE] == 'w' then hf.touch(hf.place_of(row[QUEUE], row[GROUP]), hf.order_of(row)) end
    if row[STATE] == 'r' then hf.to_wake[row[QUEUE]] = true end
    if row[KEY] then hf.note_key(row, had_key) end
    hf.changed[row[ID]] = row
end

-- == part job_keys: what only some jobs have: a key they hold, a task that keeps the newest N, several ready jobs in
-- their group.
-- lazy: built when a script first uses one of its names.

-- Lists the job in kept if its task keeps the newest N finished jobs; removes it even if the task no longer does.
function hf.list_kept(row, present)
    if hf.any_kept == nil then hf.any_kept = call('ZCARD', KEPT) > 0 end
    if present and hf.task_of(row[TASK])[TASK_RETAIN_COUNT] or not present and hf.any_kept then
        hf.put(KEPT, hf.escape(row[TASK]) .. spack('>dI8', row[FINISHED_AT], row[SEQ]) .. row[ID], present and '0')
    end
end

function hf.list_ordered(row, on)
    local place = hf.place_of(row[QUEUE], row[GROUP])
    local rank = spack('>I4I8I8d', RANK_ZERO - row[PRIORITY], hf.order_of(row) + TURN_ZERO, row[SEQ], row[DUE_AT])
    hf.put(ORDERED, place .. rank .. row[ID], on)
end

-- The field of the job's key: by queue and task, or by task alone.
function hf.key_name(row)
    local terms = row[TERMS]
    if terms and terms ~= true and terms[TERMS_GLOBAL] then
        return GLOBAL_KEY_NAME(hf.escape(row[TASK]), row[KEY])
    end
    return hf.logical_of(row)
end

-- Whether the job holds its key.
function hf.holds(row)
    local terms = row[TERMS]
    if terms and terms ~= true then return terms[TERMS_HOLDS_KEY] end
    return terms
end

function hf.set_holds(row, holds)
    local terms = row[TERMS]
    if terms and terms ~= true then terms[TERMS_HOLDS_KEY] = holds else row[TERMS] = holds end
end

-- Records a change of whether the job holds its key.
function hf.note_key(row, had_key)
    local holds = hf.holds(row)
    if (had_key or false) == holds then return end
    local name = hf.key_name(row)
    if holds then
        hf.key_changes[name] = row[ID]
    elseif hf.key_changes[name] == nil or hf.key_changes[name] == row[ID] then
        hf.key_changes[name] = false
    end
end

-- When the window of the job's key ends; nil if it has none.
function hf.window_end(row)
    local terms = row[TERMS]
    local has_window = row[KEY] and terms and terms ~= true and terms[TERMS_WINDOW]
    return has_window and WINDOW_END(row, terms) or nil
end

-- The job finished: its key is free, unless it has a window. Returns when the window ends.
function hf.end_key(row)
    local ends = hf.window_end(row)
    if not ends then hf.set_holds(row, false) end
    return ends
end

-- The job is leased: free a key that is held only until the start.
function hf.start_key(row)
    local terms = row[TERMS]
    if FREE_AT_START(terms) then
        terms[TERMS_HOLDS_KEY] = false
        hf.note_key(row, true)
    end
end

function hf.save_keys()
    for name, id in pairs(hf.key_changes) do
        if id then call('HSET', KEYED, name, id) else call('HDEL', KEYED, name) end
    end
    hf.key_changes = {}
end

function hf.staged_member(row)
    return hf.place_of(row[QUEUE], row[GROUP]) .. spack('>I8', row[TURN] + TURN_ZERO) .. row[ID]
end
