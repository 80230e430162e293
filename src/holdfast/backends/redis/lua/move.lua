-- move: export and import a store's contents, and seal the store meanwhile.

-- == script seal: replace or remove exactly the seal that was read (compare-and-set).
-- args: now, had, has, closes, must_be_empty
-- raw: before, after
-- Whether there was a seal, whether there will be one, whether that closes the store, whether the store must be empty
-- for it; the raw texts are both seals.
-- Returns 1; 0 if the seal is not the one that was read; -1 and the number of jobs, letters, overrides, pauses and
-- entries not declared by code, if the store is not empty. In the last two cases nothing was changed.
-- Concurrency: a script runs alone, so no other step is under way when it closes the store.

local had, has, closes, must_be_empty = args.had, args.has, args.closes, args.must_be_empty
if call('HGET', META, 'seal') ~= (had and ARGV.before) then return { 0 } end
if must_be_empty then
    local found, total = { -1 }, 0
    for _, key in ipairs({ JOBS, LETTERS, OVERRIDES, PAUSES }) do
        found[#found + 1] = call('HLEN', key)
        total = total + found[#found]
    end
    local made = 0
    for _, entry in ipairs(call('HVALS', ENTRIES)) do
        if byte(entry, ENTRY_HEAD_BYTES) == 0 then made = made + 1 end
    end
    found[#found + 1] = made
    if total + made > 0 then return found end
    call('DEL', RULES, TASKS, ENTRIES, FLOWS, GROUP_FLOWS, WAKING, LAPSING)
end
call('HDEL', META, 'seal', 'sealed')
if has then call('HSET', META, 'seal', ARGV.after) end
if closes then call('HSET', META, 'sealed', ARGV.after) end
return { 1 }

-- == script export: a page of the store in a stable order: jobs by seq, letters by the id of their job, or all rules.
-- args: now, part, after, limit
-- raw: after, parent, name
-- Jobs continue after a seq, letters after the raw text, edges after the child `after` and its parent, steps after
-- the job `after`, the kind `parent` and the name. Bounded. Never writes.
-- Returns the pieces of jobs, their packed log lines and their packed marks; or packed letters; or child, parent,
-- status and packed dependent of edges; or members and packed values of steps; or the tick, then rules of queues and
-- tasks, overrides, rate states of queues and tasks and of groups, entries and pauses as they are stored.
-- Concurrency: the store is sealed while it is exported.

local part, after, limit = args.part, args.after, args.limit
if part == 'rules' then
    local all = { meta.tick or '0' }
    for i, key in ipairs({ RULES, TASKS, OVERRIDES, FLOWS, GROUP_FLOWS, ENTRIES, PAUSES }) do
        all[i + 1] = call('HGETALL', key)
    end
    return all
end
if part == 'letters' then
    local low = ARGV.after == '' and '-' or '(' .. sub(hf.escape(ARGV.after), 1, -2) .. '\1'
    local letters = {}
    for i, member in ipairs(call('ZRANGEBYLEX', HOLDERS, low, '+', 'LIMIT', 0, limit)) do
        letters[i] = call('HGET', LETTERS, sub(member, string.find(member, '\0', 1, true) + 1))
    end
    return letters
end
if part == 'edges' then
    local low, edges = ARGV.after == '' and '-' or '(' .. hf.escape(ARGV.after) .. ARGV.parent, {}
    for i, member in ipairs(call('ZRANGEBYLEX', PARENTS, low, '+', 'LIMIT', 0, limit)) do
        local ends = string.find(member, '\0', 1, true)
        local child, parent = hf.plain(sub(member, 1, ends - 1)), sub(member, ends + 1)
        edges[i] = { child, parent, hf.status_of(parent, child), call('HGET', DEPENDENTS, child) }
    end
    return edges
end
if part == 'steps' then
    local low = ARGV.after == '' and '-' or '(' .. hf.step_member(ARGV.after, ARGV.parent, ARGV.name)
    return hf.stored_steps(call('ZRANGEBYLEX', STEPS, low, '+', 'LIMIT', 0, limit))
end
local ids = call('ZRANGEBYSCORE', SEQS, format('(%.0f', after), '+inf', 'LIMIT', 0, limit)
local lines, marks = {}, {}
for i, id in ipairs(ids) do lines[i], marks[i] = call('HGET', LOGS, id), call('HGET', MARKS, id) end
return { hf.pieces_of(ids), lines, marks }

-- == script carry: store rows of another store unchanged, and raise the counters above them.
-- args: now, queues, tasks, overrides, flows, entries, pauses, jobs, letters, tick, seq, edges, steps
-- raw: seal, seal_after, texts...
-- Queues and tasks are NAMED; overrides, rate states and pauses SCOPED; entries ENTRY; jobs records; letters LETTER;
-- ticks and seqs stay above `tick` and `seq`. `seal` is the one that was read, `seal_after` records the progress. The
-- texts are each entry's, then for each job six pieces, '' for none: body, value, errors, progress, log lines,
-- marks; then for each step its value.
-- Returns 1; 0 if the seal is another; or -1 if a job holds the key of another: then nothing was changed.
-- Existing rows stay, so a repeated shipment changes nothing. Nothing is refilled: a group may arrive in pieces.
-- Concurrency: a script runs alone, and the rows and the progress are written in the same step.

local jobs, entries = args.jobs, args.entries
if call('HGET', META, 'seal') ~= ARGV.seal then return { 0 } end

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

local function scope_in(one) return hf.scope_of(one[SCOPED_KIND], one[SCOPED_QUEUE], one[SCOPED_NAME]) end

for _, one in ipairs(args.queues) do call('HSETNX', RULES, one[NAMED_NAME], cpack(one[NAMED_RULE])) end
for _, one in ipairs(args.tasks) do
    local rule = one[NAMED_RULE]
    hf.use('t')
    if call('HSETNX', TASKS, one[NAMED_NAME], cpack(rule)) == 1 and rule and rule[TASK_RETAIN_COUNT] then
        call('HSET', META, 'listing', '')
    end
end
for _, one in ipairs(args.overrides) do
    hf.use('o')
    call('HSETNX', OVERRIDES, scope_in(one), cpack(one[SCOPED_VALUE]))
end
for _, one in ipairs(args.flows) do
    local scope = scope_in(one)
    if not hf.flow_of(scope) then hf.keep_flow(scope, one[SCOPED_VALUE]) end
end
for i, one in ipairs(entries) do
    local head = spack('>I8I1', one[ENTRY_VERSION], one[ENTRY_DECLARED] and 1 or 0)
    call('HSETNX', ENTRIES, one[ENTRY_NAME], head .. ARGV[PLACE.seal_after + i])
end
for _, one in ipairs(args.pauses) do
    hf.use('p')
    call('HSETNX', PAUSES, scope_in(one), cpack(one[SCOPED_VALUE]))
end

hf.tick, hf.seq = math.max(hf.tick, args.tick), math.max(hf.seq, args.seq)
local pieces, before = { {}, {}, {}, {}, {}, {} }, PLACE.seal_after + #entries
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
            local piece = ARGV[before + #pieces * (i - 1) + kind]
            if piece ~= '' then values[#values + 1], values[#values + 2] = id, piece end
        end
    end
end
local bodies = pieces[1]
for i = 2, #bodies, 2 do
    if #bodies[i] > (tonumber(meta.body_max) or HUGE) then hf.raise_body_max(#bodies[i]) end
end
for kind, key in ipairs({ BODIES, VALUES, ERRORS, PROGRESS, LOGS, MARKS }) do
    hf.in_pieces('HSET', key, pieces[kind], #pieces[kind])
end
hf.flush()
hf.save_keys()
hf.save_rows()
for _, one in ipairs(args.letters) do
    local letter, queue, task, key = one[LETTER_LETTER], one[LETTER_QUEUE], one[LETTER_TASK], one[LETTER_KEY]
    local logical = key and KEY_NAME(hf.escape(queue), hf.escape(task), key) or 'i' .. letter.id
    if not hf.letter_at(logical) then hf.keep_letter(logical, letter) end
end
for _, edge in ipairs(args.edges) do
    local parent, child, status = edge[EDGE_PARENT], edge[EDGE_CHILD], edge[EDGE_STATUS]
    if call('ZADD', PARENTS, 'NX', 0, hf.escape(child) .. parent) == 1 then
        local dependent = hf.dependent(child) or { 0, 0, edge[EDGE_POLICY], edge[EDGE_DELAY], edge[EDGE_DUE_AT] }
        hf.use('e')
        call('ZADD', EDGES, 0, hf.escape(parent) .. status .. child)
        hf.count_edge(dependent, status ~= '2' and 1 or 0, status == '1' and 1 or 0)
        hf.keep_dependent(child, dependent)
        -- It may be out of line: that is seen when the store is open.
        if status ~= '2' then call('ZADD', PROPAGATING, 'NX', format('%.0f', hf.next_tick()), parent) end
    end
end
if #args.edges > 0 then hf.save_dependents() end
for i, step in ipairs(args.steps) do
    local id, kind, name, number, until_at, at, fence = unpack(step)
    if call('HEXISTS', STEP_VALUES, hf.step_member(id, kind, name)) == 0 then
        local value = ARGV[before + #pieces * #jobs + i]
        hf.keep_step(id, kind, name, { number, value ~= '' and value, until_at, at, fence })
    end
end
hf.save_tick()
call('HSET', META, 'seal', ARGV.seal_after, 'sealed', ARGV.seal_after)
return { 1 }
