-- fast_path: the most common exchanges in straight code; same effect as the general path, or it falls through to that.

-- == fast exchange: the fast path in four sections: this one reads the settled jobs, exchange_taking picks the jobs
-- to lease, exchange_chaining those behind them in their groups, exchange_writing writes. It serves claims that
-- settle only plain successes, from strict queues without limit, rate and aging, of tasks without rules, in a store
-- without pauses and overrides. Takes and returns the same as script exchange. Per-task caps only apply to tasks with
-- a dedicated lane, which have rules and never reach this path. Anything else falls through to the script before
-- anything is written: a dead letter; something due, expired or stalled; a quiet time; a slow-down; ready jobs in
-- dedicated lanes; a group with jobs left in play while others of its queue are ready; freed jobs that sort before
-- jobs already ready. A caller whose recent calls fell through skips the attempt, which would cost a fifth more.
-- Concurrency: a script runs alone; every write to a lease is fenced by its token.

local ROWS_MAX, QUEUES_MAX, ODD_BYTES = 3500, 100, '[%z\1]' -- ROWS_MAX: records that one command may write

-- The cheapest checks come first: a call that does not qualify should lose little time here.
local settlements, request, used, n = args.settlements, args.request, meta.used, #args.settlements
if args.skip_fast_path or not request or sealed or #args.releases > 0 or request.most_by_group
    or request.priorities then break end
local worker, number, queues = request.worker, request.call, request.queues
local most, by_queue = request.most, request.most_by_queue
if 2 * n + most + request.chained_max > ROWS_MAX or #queues == 0 or #queues > QUEUES_MAX
    or find(worker, ODD_BYTES) then break end
local plain, ids = true, {}
for i = 1, n do
    local one = settlements[i]
    ids[i] = one[SETTLED_ID]
    local ending = one[SETTLED_ENDING]
    if ending and (ending ~= 'o' or one[SETTLED_FAILED] or one[SETTLED_FAILURE] or one[SETTLED_RETAIN] < 0) then
        plain = false
    end
end
if not plain or used and (find(used, 'r', 1, true) or HAS_EXCEPTIONS(used)
    or find(used, '[ot]') and call('ZCARD', APART) > 0) then break end
local names, known, checked = {}, {}, 0
for i = 1, #queues do
    if known[queues[i]] then plain = false end
    names[i], known[queues[i]] = queues[i], true
end

-- Whether these queues qualify. Called for the request's queues, and again below for others with settled jobs.
local function check_queues()
    local more = #names - checked
    if more == 0 then return end
    local rules, scopes = call('HMGET', RULES, unpack(names, checked + 1)), {}
    for i = 1, more do
        local name, rule, is_sound = names[checked + i], rules[i], true
        if rule then is_sound, rule = pcall(cunpack, rule) end
        if not is_sound or find(name, ODD_BYTES) then
            plain = false
        elseif rule then
            plain = plain and type(rule) == 'table' and rule[RULE_GROUP_ORDER] == 'strict'
                and not (rule[RULE_LIMIT] or rule[RULE_RATE] or rule[RULE_GROUP_RATE] or rule[RULE_AGING]
                    or rule[RULE_ORDER_WINDOW])
        end
        scopes[i] = 'q' .. name
    end
    if used and find(used, 'f', 1, true) then
        local flows = call('HMGET', FLOWS, unpack(scopes))
        for i = 1, more do plain = plain and not flows[i] end
    end
    checked = #names
end
check_queues()
if not plain then break end

-- The worker, the server's replication id, and whether anything is overdue.
local facts, last = call('HGET', WORKERS, worker), call('HGET', CALLS, worker)
if not facts or #facts < 33 or not (struct.unpack('>d', facts, 25) > now) then break end
if last then
    local _, _, call_before = pcall(cmsgpack.unpack_limit, last, 1, 1) -- the first field, behind their number
    if not (type(call_before) == 'number' and call_before < number) then break end
end
local told, late = redis.pcall('INFO', 'replication'), format('%.17g', now)
if type(told) ~= 'string' or not (meta.life and find(told, 'master_replid:' .. meta.life, 1, true))
    or (tonumber(meta.quiet_until) or 0) > now or call('ZCOUNT', DEADLINES, '-inf', late) > 0 then break end
if call('EXISTS', EXPIRING, DUE, REVIVALS) > 0 and (call('ZCOUNT', EXPIRING, '-inf', late) > 0
    or call('ZCOUNT', DUE, '-inf', late) > 0 or call('ZCOUNT', REVIVALS, '-inf', late) > 0) then break end

-- Jobs that others wait for.
if used and find(used, 'e', 1, true) then
    plain = call('ZCARD', PROPAGATING) == 0
    for i = 1, plain and n or 0 do
        local prefix = PLAIN(ids[i])
        plain = plain and not find(ids[i], ODD_BYTES)
            and call('ZLEXCOUNT', EDGES, '[' .. prefix .. '0', '(' .. prefix .. '2') == 0
    end
end
if not plain then break end

-- Decodes these jobs' records if they exist and are not decoded yet. Raises an error at one that cannot be read.
local rows = {}
local function open_rows(found, wanted, number)
    for i = 1, number do
        local id = wanted[i]
        if found[i] and not rows[id] then
            local row = UNPACKED(found[i], cmsgpack.unpack_limit)
            if not (row[ID] == id and ROW_IS_SOUND) then error('it makes no sense') end
            rows[id] = row
        end
    end
end

-- The settled jobs.
if n > 0 and not pcall(open_rows, call('HMGET', JOBS, unpack(ids)), ids, n) then break end
for i = 1, n do
    local queue = rows[ids[i]] and rows[ids[i]][QUEUE]
    if queue and not known[queue] then names[#names + 1], known[queue] = queue, true end
end
check_queues()

local answers, settled, s, of_queue, of_task, off_running, finished, prunable = {}, {}, 0, {}, {}, {}, {}, {}
local prune_texts, values, logical, off_keyed, seen, off_play = {}, {}, {}, {}, {}, {}
local off_waiting, fresh, place_of, f, places, line_of = {}, {}, {}, 0, {}, {}
for i = 1, plain and n or 0 do
    local one = settlements[i]
    local id, row = one[SETTLED_ID], rows[one[SETTLED_ID]]
    local queue, group = row and row[QUEUE], row and row[GROUP]
    if not row or row[STATE] ~= 'x' or row[TOKEN] ~= one[SETTLED_TOKEN] then
        answers[i] = 'l'
    elseif row[CANCEL_REQUESTED] then
        answers[i] = 'c'
    elseif row[KEY] and find(row[TASK], ODD_BYTES) or row[WORKER] ~= worker or group and find(group, ODD_BYTES) then
        plain = false
    else
        local task, value = row[TASK], not one[SETTLED_ENDING] or one[SETTLED_VALUE]
        local prune_at = PRUNE_AT(one[SETTLED_RETAIN] or RETAIN_SECONDS)
        s = s + 1
        if row[KEY] then -- free from now on, unless it has a window
            local terms, name = row[TERMS], KEY_NAME(PLAIN(queue), PLAIN(task), row[KEY])
            logical[s] = name
            if terms == true then
                off_keyed[#off_keyed + 1], row[TERMS] = name, false
            elseif terms and terms[TERMS_WINDOW] then
                prune_at = math.max(prune_at, WINDOW_END(row, terms))
            elseif terms and terms[TERMS_HOLDS_KEY] then
                off_keyed[#off_keyed + 1] = terms[TERMS_GLOBAL] and GLOBAL_KEY_NAME(PLAIN(task), row[KEY]) or name
                terms[TERMS_HOLDS_KEY] = false
            end
        end
        local prune_text = prune_texts[prune_at]
        if not prune_text then
            prune_text = format('%.17g', prune_at)
            prune_texts[prune_at] = prune_text
        end
        answers[i], settled[s] = 'o', row
        off_running[s] = RUNNING_MEMBER(PLAIN(worker), row, PLAIN(queue))
        finished[2 * s - 1], finished[2 * s] = '0', FINISHED_MEMBER('o' .. PLAIN(queue), row)
        prunable[2 * s - 1], prunable[2 * s] = prune_text, id
        of_queue[queue], of_task[task] = (of_queue[queue] or 0) - 1, (of_task[task] or 0) - 1
        END_LEASE(row)
        FINISH_RECORD(row, 'o', prune_at)
        row[ATTEMPTS], row[SUSPECT], row[VALUE] = row[ATTEMPTS] + 1, false, KEPT_VALUE(value)
        if row[VALUE] == 1 then values[#values + 1], values[#values + 2] = id, ARGV[value] end
        if group then
            local place = PLAIN(queue) .. PLAIN(group)
            if not seen[place] then places[#places + 1] = place end
            seen[place], off_play[#off_play + 1] = (seen[place] or 0) + 1, place .. id
            line_of[place] = queue
        end
    end
end

-- The groups that have nothing left in play, and the jobs that wait in them: one, or as many as may be leased together.
for i = 1, plain and #places or 0 do
    local place = places[i]
    local low, high, queue = '[' .. place, '(' .. place .. '\255', line_of[place]
    local left = call('ZLEXCOUNT', PLAY, low, high) - seen[place]
    local line = left == 0 and call('ZRANGEBYLEX', WAITING, low, high, 'LIMIT', '0',
        request.chained_max > 0 and request.chain_by_queue[queue] or '1')
    line_of[place] = line
    if left ~= 0 then -- the rest of a chain: nothing is to be withdrawn if nothing is ready
        local ready = call('ZRANGEBYLEX', READY, '[' .. queue .. '\0001', '(' .. queue .. '\0002', 'LIMIT', '0', '1')
        plain = plain and left > 0 and #ready == 0
    elseif #line > 0 then
        f = f + 1
        local head = unpack(line, 1, 1)
        off_waiting[f], fresh[f], place_of[f] = head, WAITING_ID(head, #place), place
    end
end
if plain and s > 0 and used and find(used, 'd', 1, true) then
    for i = 1, s do logical[i] = logical[i] or 'i' .. settled[i][ID] end
    local letters = call('HMGET', LETTERS, unpack(logical, 1, s))
    for i = 1, s do plain = plain and not letters[i] end
end
if not plain then break end

-- == fast exchange_taking: which jobs the fast path leases. A strict group's next job goes from waiting straight to
-- running if the claim takes it anyway. Order and shares are those of lua/claim.lua. If freed jobs are not the last in
-- their lane, it falls through to the script.

-- The groups' next jobs become ready, in this order.
local tick, micros, fresh_of, to_wake = tonumber(meta.tick) or 0, math.floor(now * 1000000), {}, {}
if not (tick < COUNTED_MAX) then break end
if f > 0 and not pcall(open_rows, call('HMGET', JOBS, unpack(fresh)), fresh, f) then break end
for i = 1, f do
    local row = rows[fresh[i]]
    if not row or row[STATE] ~= 'w' then
        plain = false
        break
    end
    local queue = row[QUEUE]
    local those = fresh_of[queue] or {}
    local before = those[#those]
    if not row[TURN] then
        NEXT_TICK(tick)
        row[TURN] = math.min(tick, TURN_ZERO)
    end
    row[STATE], row[LANE] = 'r', LANE_BY_GROUP(row[GROUP])
    plain = plain and not (before and (before[PRIORITY] < row[PRIORITY]
        or before[PRIORITY] == row[PRIORITY] and before[TURN] >= row[TURN]))
    those[#those + 1], fresh_of[queue], to_wake[queue] = row, those, true
end

if not plain then break end

-- Which jobs are leased: lane 0 (no group) and lane 1 (group) share the room as in hf.lease_from_lanes.
local leased, taken, off_ready, new, unread = 0, {}, {}, {}, 0
for q = 1, #queues do
    local queue = queues[q]
    local wanted, first = math.min(most - leased, by_queue[queue] or most), number % 2
    if wanted > 0 then
        local low, high, upper = '[' .. queue .. '\0000', '[' .. queue .. '\0001', '(' .. queue .. '\0002'
        local at, half, loose = #queue + 2, math.ceil(wanted / 2), 0
        local found = call('ZRANGEBYLEX', READY, low, upper, 'LIMIT', '0', wanted)
        while loose < #found and byte(found[loose + 1], at) == 48 do loose = loose + 1 end
        local behind, before, grouped = found, loose, #found - loose -- lane 1: so many of a list, behind the first ones
        local needed = first == 1 and half or wanted - half
        if #found == wanted and grouped < needed then
            behind, before = call('ZRANGEBYLEX', READY, high, upper, 'LIMIT', '0', needed), 0
            grouped = #behind
        end
        local freed = fresh_of[queue] or {}
        if grouped > 0 and #freed > 0 then -- they come after those that were ready?
            local last, next_rank = behind[before + grouped], RANK_ZERO - freed[1][PRIORITY]
            if #last < at + 12 then -- nothing of ours
                plain = false
            else
                local rank, turn = struct.unpack('>I4I8', last, at + 1)
                plain = plain and (rank < next_rank or rank == next_rank and turn < freed[1][TURN] + TURN_ZERO)
            end
        end
        local of_loose, of_grouped, left = 0, 0, wanted
        for step = 0, 2 do
            local is_loose = (first + step) % 2 == 0
            local there = is_loose and loose - of_loose or grouped + #freed - of_grouped
            local share = math.min(step == 0 and half or left, there)
            left = left - share
            for _ = 1, share do
                local id
                if is_loose then
                    of_loose = of_loose + 1
                    id = sub(found[of_loose], at + 29)
                else
                    of_grouped = of_grouped + 1
                    local of_freed = of_grouped - grouped
                    id = of_freed > 0 and freed[of_freed][ID] or sub(behind[before + of_grouped], at + 29)
                end
                leased = leased + 1
                taken[leased] = id
                if not rows[id] then
                    unread = unread + 1
                    new[unread] = id
                end
            end
        end
        of_grouped = math.min(of_grouped, grouped)
        if of_loose > 0 then off_ready[#off_ready + 1], off_ready[#off_ready + 2] = found[1], found[of_loose] end
        if of_grouped > 0 then
            off_ready[#off_ready + 1], off_ready[#off_ready + 2] = behind[before + 1], behind[before + of_grouped]
        end
        if left > 0 then to_wake[queue] = nil end -- nothing claimable is left there to tell others of
    end
end
if unread > 0 and not pcall(open_rows, call('HMGET', JOBS, unpack(new)), new, unread) then break end
for i = 1, leased do
    local row = rows[taken[i]]
    if not row or row[STATE] ~= 'r' or row[LANE] > 7 or row[KEY] and find(row[TASK], ODD_BYTES) then
        plain = false
        break
    end
    row[STATE] = 'x' -- at once: a second entry that leads to it is not plain
end
if not plain then break end

-- == fast exchange_writing: write what the fast path settled and leased, each index in one call. Members and
-- records are made by the fragments of lua/fragments.lua, as everywhere.

local nonce = args.nonce
local running, expiring, pieces, records, r, ready = {}, {}, {}, {}, 0, {}
for i = 1, s do
    r = r + 2
    records[r - 1], records[r] = settled[i][ID], cpack(settled[i])
end
for i = 1, leased do
    local row = rows[taken[i]]
    local id, queue, task = row[ID], row[QUEUE], row[TASK]
    NEXT_TICK(tick)
    LEASE_RECORD(row, tick, nonce, worker, number)
    local terms = row[TERMS]
    if terms and FREE_AT_START(terms) then
        off_keyed[#off_keyed + 1] = terms[TERMS_GLOBAL] and GLOBAL_KEY_NAME(PLAIN(task), row[KEY])
            or KEY_NAME(PLAIN(queue), PLAIN(task), row[KEY])
        terms[TERMS_HOLDS_KEY] = false
    end
    if row[EXPIRES_AT] then expiring[#expiring + 1] = id end
    running[2 * i - 1] = '0'
    running[2 * i] = RUNNING_MEMBER(PLAIN(worker), row, PLAIN(queue))
    of_queue[queue], of_task[task] = (of_queue[queue] or 0) + 1, (of_task[task] or 0) + 1
    local record = cpack(row)
    r = r + 2
    records[r - 1], records[r] = id, record
    pieces[2 * i - 1] = record
    if bodies then pieces[2 * i] = bodies[i] else pieces[2 * i] = BODY_OR_NAME(id) end
end
for i = 1, f do
    local id = fresh[i]
    local row = rows[id]
    play[#play + 1], play[#play + 2] = '0', place_of[i] .. id
    if row[STATE] == 'r' then
        ready[#ready + 1] = '0'
        ready[#ready + 1] = PLAIN(row[QUEUE]) .. row[LANE] .. READY_RANK(row, row[PRIORITY]) .. id
        r = r + 2
        records[r - 1], records[r] = id, cpack(row)
    end
end
for i = 1, #off_ready, 2 do call('ZREMRANGEBYLEX', READY, '[' .. off_ready[i], '[' .. off_ready[i + 1]) end
if s > 0 then
    call('ZREM', RUNNING, unpack(off_running))
    call('ZADD', FINISHED, unpack(finished))
    call('ZADD', PRUNABLE, unpack(prunable))
end
if #off_play > 0 then call('ZREM', PLAY, unpack(off_play)) end
if #play > 0 then
    call('ZREM', WAITING, unpack(off_waiting))
    call('ZADD', PLAY, unpack(play))
end
if #ready > 0 then call('ZADD', READY, unpack(ready)) end
if leased > 0 then call('ZADD', RUNNING, unpack(running)) end
if #expiring > 0 then call('ZREM', EXPIRING, unpack(expiring)) end
if #off_keyed > 0 then call('HDEL', KEYED, unpack(off_keyed)) end
if #values > 0 then call('HSET', VALUES, unpack(values)) end
if r > 0 then call('HSET', JOBS, unpack(records)) end
for kind, changes in pairs({ q = of_queue, t = of_task }) do
    for name, change in pairs(changes) do
        local left = change == 0 or redis.pcall('HINCRBY', BUSY, kind .. name, change)
        if left == 0 or type(left) == 'table' then call('HDEL', BUSY, kind .. name) end -- a table: it was no number
    end
end
if leased + f > 0 then call('HSET', META, 'tick', format('%.0f', tick)) end
answers = concat(answers)
call('HSET', CALLS, worker, cpack({ number, answers }))
local hint = {}
for queue in pairs(to_wake) do hint[#hint + 1], hint[#hint + 2] = 'q', queue end
if #hint > 0 then EMIT_HINT(unpack(hint)) end
return { 2, answers, '\144', pieces, '', '0', '', chained }
