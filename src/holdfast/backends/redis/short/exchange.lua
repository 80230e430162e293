-- exchange: the short way, in three files: this one reads what is settled, exchange_taking which jobs are leased then,
-- exchange_writing writes. It is for a claim that settles nothing but plain successes, from strict queues without
-- limit, rate and aging, of tasks without rules, in a store without pauses and overrides. Takes and returns what
-- scripts/exchange.lua does. What a worker says of single tasks is heeded for tasks apart, which have rules: not here.
-- What is met that is not plain leaves the call to the script, before anything is written: a letter, something due,
-- expired or stalled, a quiet time, a slow-down, ready jobs of tasks apart, a group with several in play, freed jobs
-- that come before others already ready.
-- A caller whose calls were not plain of late says so, and it is not tried: that would cost a fifth more.
-- Safe against a rival: a script runs alone; every write about a lease is fenced by its token.

local ROWS_MAX, QUEUES_MAX, ODD_BYTES = 1000, 100, '[%z\1]'

-- What is seen at once comes first: a call that is not plain should lose little here.
local settlements, request, used, n = args[2], args[4], meta[7], #args[2]
if args[7] or not request or sealed or #args[3] > 0 or request[7] then break end
local worker, number, queues, most, by_queue = unpack(request, 1, 5)
if n + most > ROWS_MAX or #queues == 0 or #queues > QUEUES_MAX or find(worker, ODD_BYTES) then break end
local plain, ids = true, {}
for i = 1, n do
    local one = settlements[i]
    ids[i] = one[1]
    if one[3] and (one[3] ~= 'o' or one[4] or one[7]) then plain = false end
end
if not plain or used and (find(used, 'r', 1, true) or find(used, 'p', 1, true) and call('HLEN', PAUSES) > 0
    or find(used, 'o', 1, true) and call('HLEN', OVERRIDES) > 0 or find(used, '[ot]') and call('ZCARD', APART) > 0
    or find(used, 'g', 1, true) and call('HLEN', GROUP_FLOWS) > 0) then break end
local names, known, checked = {}, {}, 0
for i = 1, #queues do
    if known[queues[i]] then plain = false end
    names[i], known[queues[i]] = queues[i], true
end

-- Are these queues plain? Asked of those of the request, and below of others in which something is settled.
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
            plain = plain and type(rule) == 'table' and rule[2] == 'strict'
                and not (rule[3] or rule[4] or rule[5] or rule[6])
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

-- The worker, the store's life, and whether anything is late.
local facts, last = call('HGET', WORKERS, worker), call('HGET', CALLS, worker)
if not facts or #facts < 33 or not (struct.unpack('>d', facts, 25) > now) then break end
if last then
    local _, _, call_before = pcall(cmsgpack.unpack_limit, last, 1, 1) -- the first field, behind their number
    if not (type(call_before) == 'number' and call_before < number) then break end
end
local told, late = redis.pcall('INFO', 'replication'), format('%.17g', now)
if type(told) ~= 'string' or not (meta[6] and find(told, 'master_replid:' .. meta[6], 1, true))
    or (tonumber(meta[5]) or 0) > now or call('ZCOUNT', DEADLINES, '-inf', late) > 0 then break end
if call('EXISTS', EXPIRING, DUE, REVIVALS) > 0 and (call('ZCOUNT', EXPIRING, '-inf', late) > 0
    or call('ZCOUNT', DUE, '-inf', late) > 0 or call('ZCOUNT', REVIVALS, '-inf', late) > 0) then break end

-- Opens these jobs' records, where they are there and not open yet. Fails at one that cannot be read.
local rows = {}
local function open_rows(found, wanted, number)
    for i = 1, number do
        local id = wanted[i]
        if found[i] and not rows[id] then
            local row = { select(2, cmsgpack.unpack_limit(found[i], FIELDS_NUMBER, 3)) }
            if not (row[ID] == id and ROW_IS_SOUND) then error('it makes no sense') end
            rows[id] = row
        end
    end
end

-- What is settled.
if n > 0 and not pcall(open_rows, call('HMGET', JOBS, unpack(ids)), ids, n) then break end
for i = 1, n do
    local queue = rows[ids[i]] and rows[ids[i]][QUEUE]
    if queue and not known[queue] then names[#names + 1], known[queue] = queue, true end
end
check_queues()

local answers, settled, s, of_queue, of_task, off_running, finished, prunable = {}, {}, 0, {}, {}, {}, {}, {}
local prune_texts, values, logical, off_keyed, seen, off_play = {}, {}, {}, {}, {}, {}
local off_waiting, fresh, place_of, f = {}, {}, {}, 0
for i = 1, plain and n or 0 do
    local one = settlements[i]
    local id, row = one[1], rows[one[1]]
    local queue, group = row and row[QUEUE], row and row[GROUP]
    if not row or row[STATE] ~= 'x' or row[TOKEN] ~= one[2] then
        answers[i] = 'l'
    elseif row[CANCEL_REQUESTED] then
        answers[i] = 'c'
    elseif row[KEY] and find(row[TASK], ODD_BYTES) or row[WORKER] ~= worker or group and find(group, ODD_BYTES) then
        plain = false
    else
        local task, value, seq = row[TASK], not one[3] or one[6], spack('>I8', row[SEQ])
        local prune_at = now + math.max(one[9] or RETAIN_SECONDS, REMEMBER_SECONDS_MIN)
        s = s + 1
        if row[KEY] then -- free from now on, unless it has a window
            local terms, name = row[TERMS], 'k' .. queue .. '\0' .. task .. '\0' .. row[KEY]
            logical[s] = name
            if terms == true then
                off_keyed[#off_keyed + 1], row[TERMS] = name, false
            elseif terms and terms[3] then
                prune_at = math.max(prune_at, row[CREATED_AT] + terms[3])
            elseif terms and terms[6] then
                off_keyed[#off_keyed + 1], terms[6] = terms[1] and 'g' .. task .. '\0' .. row[KEY] or name, false
            end
        end
        local prune_text = prune_texts[prune_at]
        if not prune_text then
            prune_text = format('%.17g', prune_at)
            prune_texts[prune_at] = prune_text
        end
        answers[i], settled[s] = 'o', row
        off_running[s] = worker .. '\0' .. spack('>I8', row[FENCE]) .. seq .. queue .. '\0' .. id
        finished[2 * s - 1], finished[2 * s] = '0', 'o' .. queue .. '\0' .. seq .. id
        prunable[2 * s - 1], prunable[2 * s] = prune_text, id
        of_queue[queue], of_task[task] = (of_queue[queue] or 0) - 1, (of_task[task] or 0) - 1
        row[STATE], row[TOKEN], row[WORKER], row[CLAIM_CALL], row[HELD] = 'o', false, false, false, false
        row[ATTEMPTS], row[SUSPECT], row[FINISHED_AT], row[PRUNE_AT] = row[ATTEMPTS] + 1, false, now, prune_at
        row[VALUE] = value == true or value and 1 or false
        if row[VALUE] == 1 then values[#values + 1], values[#values + 2] = id, ARGV[value] end
        if group then
            local place = queue .. '\0' .. group .. '\0'
            local low, high = '[' .. place, '(' .. place .. '\255'
            plain = plain and not seen[place] and call('ZLEXCOUNT', PLAY, low, high) == 1
            local member = call('ZRANGEBYLEX', WAITING, low, high, 'LIMIT', '0', '1')[1]
            seen[place], off_play[#off_play + 1] = true, place .. id
            if member then
                local freed = sub(member, #place + 14)
                f = f + 1
                off_waiting[f], fresh[f], place_of[f] = member, freed, place
            end
        end
    end
end
if plain and s > 0 and used and find(used, 'd', 1, true) then
    for i = 1, s do logical[i] = logical[i] or 'i' .. settled[i][ID] end
    local letters = call('HMGET', LETTERS, unpack(logical, 1, s))
    for i = 1, s do plain = plain and not letters[i] end
end
if not plain then break end
