-- chains: consecutive jobs of a strict group that one claim leases together.

-- == part chains: lease jobs of strict groups together with those that wait behind them (R81).
-- Concurrency: a script runs alone; the group stays full until all of them have ended.
-- lazy: built when a script first uses one of its names.

-- Whether jobs may be chained to this one, or this one to others.
local function may_chain(row)
    return not row[SUSPECT] and row[MAX_STALLS] > 0 and hf.lane_of(row) == 1
end

-- Whether a limit, rate or order window applies to each job of the group: then none is leased ahead.
local function is_counted(row, place)
    local rule = hf.rule_of(row[QUEUE])
    local _, rate, strict = hf.group_of(place)
    return rule.rate or rule.limit < UNLIMITED or rate or rule[RULE_ORDER_WINDOW] or not strict
end

-- Leases up to `most` jobs behind this one; returns how many.
local function chain_to(row, place, most, claim)
    local members = call('ZRANGEBYLEX', WAITING, '[' .. place, '(' .. place .. '\255', 'LIMIT', 0, most)
    local ids, before = hf.waiting_ids(members, #place), row
    hf.load_rows(ids)
    for i = 1, #ids do
        local next_one = hf.cache[ids[i]]
        if not next_one or next_one[STATE] ~= 'w'
            or next_one[PRIORITY] ~= before[PRIORITY] or hf.before(next_one, before)
            or next_one[EXPIRES_AT] and next_one[EXPIRES_AT] <= now or not may_chain(next_one) then return i - 1 end
        if claim.weighs and not hf.fits(ids[i], claim) then
            claim.full = true
            return i - 1
        end
        next_one[LANE], before = 1, next_one
        hf.put(WAITING, members[i], false)
        hf.put(PLAY, place .. ids[i], '0')
        hf.lease(next_one, claim)
    end
    return #ids
end

-- Returns how many jobs were chained.
function hf.chain(claim, by_queue, most)
    local fronts, left = {}, most
    for _, row in ipairs(claim.rows) do
        if row[GROUP] and (by_queue[row[QUEUE]] or 1) > 1 and may_chain(row)
            and not is_counted(row, hf.place_of(row[QUEUE], row[GROUP])) then fronts[#fronts + 1] = row end
    end
    hf.flush()
    if #fronts == 0 or call('ZCOUNT', DUE, '-inf', now) > 0 then return 0 end
    for i, row in ipairs(fronts) do
        local wanted = math.min(by_queue[row[QUEUE]] - 1, math.ceil(left / (#fronts - i + 1)))
        if wanted > 0 and not claim.full then
            local leased = chain_to(row, hf.place_of(row[QUEUE], row[GROUP]), wanted, claim)
            left = left - leased
            hf.begun_of[row[QUEUE]] = (hf.begun_of[row[QUEUE]] or 0) + leased
        end
    end
    return most - left
end

-- == fast exchange_chaining: the same on the fast path, whose queues, groups and tasks have no rule against it.
-- Claims that bring too many bytes, and jobs with an order of their caller's, are left to the script.

local chained, play, fronts = 0, {}, {}
local by_chain, left = request.chain_by_queue, request.chained_max
for i = 1, left > 0 and leased or 0 do
    local row = rows[taken[i]]
    if row[GROUP] and (by_chain[row[QUEUE]] or 1) > 1 and not row[SUSPECT] and row[MAX_STALLS] > 0 then
        fronts[#fronts + 1] = row
        plain = plain and not find(row[GROUP], ODD_BYTES)
    end
end
for i = 1, plain and #fronts or 0 do
    local before, ids, from = fronts[i], {}, 1 -- from: the first of the line is leased already if its group was freed
    local place = PLAIN(before[QUEUE]) .. PLAIN(before[GROUP])
    local wanted = math.min(by_chain[before[QUEUE]] - 1, math.ceil(left / (#fronts - i + 1)))
    local line = line_of[place]
    if not line then
        line, from = call('ZRANGEBYLEX', WAITING, '[' .. place, '(' .. place .. '\255', 'LIMIT', '0', wanted), 0
    end
    for j = 1, math.min(wanted, #line - from) do ids[j] = WAITING_ID(line[from + j], #place) end
    if #ids > 0 and not pcall(open_rows, call('HMGET', JOBS, unpack(ids)), ids, #ids) then plain = false end
    for j = 1, plain and #ids or 0 do
        local row = rows[ids[j]]
        if not row or row[STATE] ~= 'w' or row[PRIORITY] ~= before[PRIORITY] or row[SEQ] < before[SEQ]
            or row[EXPIRES_AT] and row[EXPIRES_AT] <= now or row[SUSPECT] or row[MAX_STALLS] <= 0 then break end
        if HAS_ORDER(row) or HAS_ORDER(before) or row[KEY] and find(row[TASK], ODD_BYTES) then plain = false end
        row[STATE], row[LANE], before = 'x', 1, row
        chained, left, leased = chained + 1, left - 1, leased + 1
        taken[leased], off_waiting[#off_waiting + 1] = ids[j], line[from + j]
        play[#play + 1], play[#play + 2] = '0', place .. ids[j]
    end
end
if plain and used and find(used, 't', 1, true) then -- tasks that say nothing have no rule
    local tasks = {}
    for i = 1, s do tasks[i] = settled[i][TASK] end
    for i = 1, f do tasks[s + i] = rows[fresh[i]][TASK] end
    for i = 1, leased do tasks[s + f + i] = rows[taken[i]][TASK] end
    tasks = #tasks > 0 and call('HMGET', TASKS, unpack(tasks)) or tasks
    for i = 1, #tasks do plain = plain and not tasks[i] end
end
if not plain then break end

local bodies = leased > 0 and BODIES_PASS(leased) and call('HMGET', BODIES, unpack(taken))
if leased > 1 and leased * (tonumber(meta.body_max) or HUGE) > request.bytes_max then -- together they may be too long
    local bytes = 0
    for i = 1, leased do
        bytes = bytes + (bodies and #(bodies[i] or '') or call('HSTRLEN', BODIES, taken[i])) - BODY_HEAD
    end
    if bytes > request.bytes_max then break end
end
