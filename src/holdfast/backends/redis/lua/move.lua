-- move: export and import a store's contents, and seal the store meanwhile.

-- == script seal: replace or remove exactly the seal that was read (compare-and-set).
-- Takes now, whether there was one, whether there will be one, whether that closes the store, whether the store must be
-- empty for it; ARGV[2], ARGV[3]: both texts.
-- Returns 1; 0 if the seal is not the one that was read; -1 and the number of jobs, letters, overrides, pauses and
-- entries not declared by code, if the store is not empty. In the last two cases nothing was changed.
-- Concurrency: a script runs alone, so no other step is under way when it closes the store.

local had, has, closes, must_be_empty = args[2], args[3], args[4], args[5]
if call('HGET', META, 'seal') ~= (had and ARGV[2]) then return { 0 } end
if must_be_empty then
    local found, total = { -1 }, 0
    for _, key in ipairs({ JOBS, LETTERS, OVERRIDES, PAUSES }) do
        found[#found + 1] = call('HLEN', key)
        total = total + found[#found]
    end
    local made = 0
    for _, entry in ipairs(call('HVALS', ENTRIES)) do
        if byte(entry, 9) == 0 then made = made + 1 end
    end
    found[#found + 1] = made
    if total + made > 0 then return found end
    call('DEL', RULES, TASKS, ENTRIES, FLOWS, GROUP_FLOWS, WAKING, LAPSING)
end
call('HDEL', META, 'seal', 'sealed')
if has then call('HSET', META, 'seal', ARGV[3]) end
if closes then call('HSET', META, 'sealed', ARGV[3]) end
return { 1 }

-- == script export: a page of the store in a stable order: jobs by seq, letters by the id of their job, or all rules.
-- Bounded. Takes now, the part, the position to continue after, how many; for letters ARGV[2] is that position. Never
-- writes. Returns the pieces of jobs and their packed log lines; or packed letters; or the tick, then rules of queues
-- and tasks, overrides, rate states of queues and tasks and of groups, entries and pauses as they are stored.

local part, after, limit = args[2], args[3], args[4]
if part == 'rules' then
    local all = { meta[2] or '0' }
    for i, key in ipairs({ RULES, TASKS, OVERRIDES, FLOWS, GROUP_FLOWS, ENTRIES, PAUSES }) do
        all[i + 1] = call('HGETALL', key)
    end
    return all
end
if part == 'letters' then
    local low = ARGV[2] == '' and '-' or '(' .. sub(hf.escape(ARGV[2]), 1, -2) .. '\1'
    local letters = {}
    for i, member in ipairs(call('ZRANGEBYLEX', HOLDERS, low, '+', 'LIMIT', 0, limit)) do
        letters[i] = call('HGET', LETTERS, sub(member, string.find(member, '\0', 1, true) + 1))
    end
    return letters
end
local ids = call('ZRANGEBYSCORE', SEQS, format('(%.0f', after), '+inf', 'LIMIT', 0, limit)
local lines = {}
for i, id in ipairs(ids) do lines[i] = call('HGET', LOGS, id) end
return { hf.shown(ids), lines }

-- == script carry: store rows of another store unchanged, and raise the counters above them.
-- Takes now, rules of queues and of tasks as [name, rule], overrides as [kind, queue, name, limit, rate, whether it has
-- a dedicated lane], rate states as [kind, queue, name, state], entries as [name, version, whether code declares it],
-- pauses as [kind, queue, name, pause], jobs as their records, letters as [queue, task, key, letter], the values
-- that ticks and seqs stay above. ARGV[2] and ARGV[3]: the seal that was read and the one that records the progress;
-- then each entry's text; then for each job five pieces, '' for none: body, value, errors, progress, log lines.
-- Returns 1; 0 if the seal is another; or -1 if a job holds the key of another: then nothing was changed.
-- Existing rows stay, so a repeated shipment changes nothing. Nothing is refilled: a group may arrive in pieces.
-- Concurrency: a script runs alone, and the rows and the progress are written in the same step.

local rules, tasks, overrides, flows, entries, pauses, jobs, letters, tick, seq = unpack(args, 2, 11)
if call('HGET', META, 'seal') ~= ARGV[2] then return { 0 } end

local ids, taken = {}, {}
for i, row in ipairs(jobs) do ids[i] = row[ID] end
hf.load_rows(ids)
for _, row in ipairs(jobs) do
    if row[KEY] and hf.holds(row) and not hf.cache[row[ID]] then
        local name = hf.key_name(row)
        if (taken[name] or row[ID]) ~= row[ID] or hf.key_holder(name) then return { -1 } end
        taken[name] = row[ID]
    end
end

for _, one in ipairs(rules) do call('HSETNX', RULES, one[1], cpack(one[2])) end
for _, one in ipairs(tasks) do
    hf.use('t')
    if call('HSETNX', TASKS, one[1], cpack(one[2])) == 1 and one[2][4] then call('HSET', META, 'listing', '') end
end
for _, one in ipairs(overrides) do
    hf.use('o')
    call('HSETNX', OVERRIDES, hf.scope_of(one[1], one[2], one[3]), cpack({ one[4], one[5], one[6] }))
end
for _, one in ipairs(flows) do
    local scope = hf.scope_of(one[1], one[2], one[3])
    if not hf.flow_of(scope) then hf.keep_flow(scope, one[4]) end
end
for i, one in ipairs(entries) do
    call('HSETNX', ENTRIES, one[1], spack('>I8I1', one[2], one[3] and 1 or 0) .. ARGV[3 + i])
end
for _, one in ipairs(pauses) do
    hf.use('p')
    call('HSETNX', PAUSES, hf.scope_of(one[1], one[2], one[3]), cpack(one[4]))
end

hf.tick, hf.seq = math.max(hf.tick, tick), math.max(hf.seq, seq)
local pieces, before = { {}, {}, {}, {}, {} }, 3 + #entries
for i, row in ipairs(jobs) do
    local id = row[ID]
    if not hf.cache[id] then
        hf.cache[id] = row
        if row[STATE] == 'r' and row[GROUP] and not hf.strict(row[QUEUE], row[GROUP]) then row[LANE] = row[LANE] + 8 end
        hf.enter(row)
        hf.put(SEQS, id, format('%.0f', row[SEQ]))
        -- Not from its turn, which may be staggered; the tick that came with the rules is not.
        hf.tick, hf.seq = math.max(hf.tick, row[FENCE]), math.max(hf.seq, row[SEQ])
        for kind, values in ipairs(pieces) do
            local piece = ARGV[before + 5 * (i - 1) + kind]
            if piece ~= '' then values[#values + 1], values[#values + 2] = id, piece end
        end
    end
end
for i = 2, #pieces[1], 2 do
    if #pieces[1][i] > (tonumber(meta[8]) or HUGE) then hf.note_largest(#pieces[1][i]) end
end
for kind, key in ipairs({ BODIES, VALUES, ERRORS, PROGRESS, LOGS }) do
    hf.in_pieces('HSET', key, pieces[kind], #pieces[kind])
end
hf.flush()
hf.save_keys()
hf.save_rows()
for _, one in ipairs(letters) do
    local letter = one[4]
    local logical = one[3] and 'k' .. hf.escape(one[1]) .. hf.escape(one[2]) .. one[3] or 'i' .. letter.id
    if not hf.letter_at(logical) then hf.keep_letter(logical, letter) end
end
hf.save_tick()
call('HSET', META, 'seal', ARGV[3], 'sealed', ARGV[3])
return { 1 }
