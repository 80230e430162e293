-- dependencies: jobs that wait for others (R83 to R85).

-- == script link: store new jobs, some of which wait for others, and their edges, all in one step.
-- args: now, jobs, numbering, links, ties
-- raw: bodies...
-- As script enqueue; a job with parents is due in the year 3000. `links` has for each job a LINK, or false; `ties`
-- (TIES, or false) is what this step stores for other shards.
-- Returns what enqueue does, or a refusal. Concurrency: a script runs alone; unknown parents are refused before
-- anything is written. A server whose memory is full refuses it.

local ties, answers, others = args.ties, '', {}
if sealed and not (ties and ties[TIES_NOTED]) then return hf.refused_sealed() end
local refusal = ties and hf.untieable(ties)
if refusal then return refusal end
if #args.jobs > 0 then answers, others = hf.enqueue(args.jobs, PLACE.bodies, args.numbering, args.links) end
if not answers then return others end
hf.link_new(args.jobs, args.links, answers, others)
if ties then hf.tie(ties) end
hf.close()
return { answers, others }

-- == script relatives: a page of the parents and children of a job.
-- args: now, id, limit, values, after_parent, after_child
-- Returns id, task, state, status and result of each parent, then of each child, by id, beyond the one given; none of a
-- side for which false is given; and how many parents have not succeeded. Results are those of parents that succeeded,
-- if `values` is set; false otherwise. Never writes.

local function facts_of(id, status, values)
    local row = hf.parent_of(id)
    local value = row and values and row[STATE] == 'o' and row[VALUE]
    if value == 1 then value = call('HGET', VALUES, id) elseif value then value = 'null' end
    return { id, row and row[TASK] or '', row and row[STATE] or 'd', status, value or false }
end

local prefix = hf.escape(args.id)

local function parents_of(beyond)
    local range, ids, facts = '(' .. sub(prefix, 1, -2) .. '\1', {}, {}
    for i, member in ipairs(call('ZRANGEBYLEX', PARENTS, '(' .. prefix .. beyond, range, 'LIMIT', 0, args.limit)) do
        ids[i] = sub(member, #prefix + 1)
    end
    hf.load_rows(ids)
    for i, id in ipairs(ids) do facts[i] = facts_of(id, hf.status_of(id, args.id), args.values) end
    return facts
end

local function children_of(beyond)
    local found, facts, statuses = {}, {}, 0
    for status = 0, 2 do
        local low, high = '(' .. prefix .. status .. beyond, '(' .. prefix .. (status + 1)
        if beyond == '' then low = '[' .. prefix .. status .. '\3' end -- behind the shards that watch it
        local members = call('ZRANGEBYLEX', EDGES, low, high, 'LIMIT', 0, args.limit)
        for _, member in ipairs(members) do
            found[#found + 1] = { id = sub(member, #prefix + 2), status = tostring(status) }
        end
        if #members > 0 then statuses = statuses + 1 end
    end
    if statuses > 1 then table.sort(found, function(one, two) return hf.precedes(one.id, two.id) end) end
    local ids = {}
    for i = 1, math.min(#found, args.limit) do ids[i] = found[i].id end
    hf.load_rows(ids)
    for i, id in ipairs(ids) do facts[i] = facts_of(id, found[i].status) end
    return facts
end

local dependent = hf.dependent(args.id)
return { args.after_parent and parents_of(args.after_parent) or {},
    args.after_child and children_of(args.after_child) or {}, dependent and dependent[DEPENDENT_PENDING] or 0 }

-- == part edges: store edges, and note a job that finished or came back. An edge is in `edges` by parent,
-- status and child, and in `parents` by child and parent; `dependents` counts those of a child that are not met
-- (pending) and those that failed. Statuses: 0 open, 1 failed, 2 met.
-- lazy: built when a script first uses one of its names.

local DUE_AFTER_PARENTS = 32503680000
hf.dependent_memo, hf.dependent_changes, hf.ended = {}, {}, {}
local WATCHER = 2 -- the byte before the name of a shard that watches a parent

-- Reads the policies of these jobs with parents, how many of their edges are not met, and how many failed.
function hf.load_dependents(children)
    local memo, missing, n = hf.dependent_memo, {}, 0
    for _, child in ipairs(children) do
        if memo[child] == nil then
            n = n + 1
            missing[n], memo[child] = child, false
        end
    end
    for from = 1, n, ARGUMENTS_MAX do
        local upto = math.min(n, from + ARGUMENTS_MAX - 1)
        local found = call('HMGET', DEPENDENTS, unpack(missing, from, upto))
        for i = from, upto do
            local packed = found[i - from + 1]
            memo[missing[i]] = packed and hf.read(packed) or false
        end
    end
end

-- The same for one job; false if it has no parents.
function hf.dependent(child)
    hf.load_dependents({ child })
    return hf.dependent_memo[child]
end

-- Written by save_dependents: a job may lose hundreds of open edges in one step.
function hf.keep_dependent(child, dependent)
    hf.dependent_memo[child], hf.dependent_changes[child] = dependent, dependent
end

function hf.save_dependents()
    local values, n = {}, 0
    for child, dependent in pairs(hf.dependent_changes) do
        values[n + 1], values[n + 2], n = child, cpack(dependent), n + 2
    end
    hf.in_pieces('HSET', DEPENDENTS, values, n)
    hf.dependent_changes = {}
end

-- formulas.edge_status of an edge that is not met.
function hf.edge_status(state, policy)
    if state == 'o' then return '2' end
    if hf.live_states[state] then return '0' end
    return policy == 'run' and '2' or '1'
end

function hf.status_of(parent, child)
    for status = 0, 2 do
        if call('ZSCORE', EDGES, hf.escape(parent) .. status .. child) then return tostring(status) end
    end
    return '0'
end

-- Stores the edges of new jobs: first those of jobs that now wait for them, then those to their parents.
function hf.link_new(jobs, links, answers, others)
    local stands_for, new = {}, { n = 0, edges = {}, listed = {} }
    for i = 1, #others, 2 do stands_for[jobs[others[i]][NEW_ID]] = others[i + 1] end
    for i, link in ipairs(links) do
        local id = jobs[i][NEW_ID]
        if link and sub(answers, i, i) == 'c' then
            if link[LINK_BEFORE] then hf.join_waiting(link[LINK_BEFORE], id) end
            if next(stands_for) then hf.name_holders(link, stands_for) end
            if #link[LINK_PARENTS] > 0 then hf.link(id, link, new) end
        end
    end
    hf.add_edges(new)
    hf.save_dependents()
end

-- Stores the edges that were collected, and empties their tables for the next ones.
function hf.add_edges(new)
    if new.n > 0 then
        call('ZADD', EDGES, unpack(new.edges, 1, new.n))
        call('ZADD', PARENTS, unpack(new.listed, 1, new.n))
        new.n = 0
    end
end

-- A call that was kept stands for the job that holds its key.
function hf.name_holders(link, stands_for)
    local parents, seen = {}, {}
    for _, named in ipairs(link[LINK_PARENTS]) do
        local parent = stands_for[named] or named
        if not seen[parent] then parents[#parents + 1], seen[parent] = parent, true end
    end
    hf.load_states(parents)
    link[LINK_PARENTS] = parents
end

-- A job that waits for others waits for this one, too (R87).
function hf.join_waiting(waiting, id)
    local dependent = hf.dependent(waiting)
    hf.put(EDGES, hf.escape(id) .. '0' .. waiting, '0')
    hf.put(PARENTS, hf.escape(waiting) .. id, '0')
    dependent[DEPENDENT_PENDING] = dependent[DEPENDENT_PENDING] + 1
    hf.keep_dependent(waiting, dependent)
end

-- Adds the edges of a new job to those that are to be stored. It may have thousands, in the longest script there is: so
-- names are checked all at once, and tables are reused.
function hf.link(child, link, new)
    local pending, failed, first, parents, policy = 0, 0, nil, link[LINK_PARENTS], link[LINK_POLICY]
    local prefix, cache, memo, edges, listed = hf.escape(child), hf.cache, hf.state_memo, new.edges, new.listed
    local ends = { ['0'] = '\0000' .. child, ['1'] = '\0001' .. child, ['2'] = '\0002' .. child }
    local is_odd, statuses, n = hf.any_odd(parents), {}, new.n
    hf.use('e')
    for i = 1, #parents do
        local parent = parents[i]
        local row, name = cache[parent], parent
        local state = row and row[STATE] or memo[parent] or false
        local status = statuses[state]
        if not status then
            status = hf.edge_status(state, policy)
            statuses[state] = status
        end
        if is_odd then name = sub(hf.escape(parent), 1, -2) end
        edges[n + 1], edges[n + 2] = '0', name .. ends[status]
        listed[n + 1], listed[n + 2] = '0', prefix .. parent
        n = n + 2
        if n == ARGUMENTS_MAX then
            new.n, n = n, 0
            hf.add_edges(new)
        end
        if status ~= '2' then pending = pending + 1 end
        if status == '1' then
            failed = failed + 1
            if not first or hf.precedes(parent, first) then first = parent end
        end
    end
    new.n = n
    local dependent = { pending, failed, policy, link[LINK_DELAY] or false, link[LINK_DUE_AT] or false }
    hf.keep_dependent(child, dependent)
    if failed > 0 or pending == 0 then hf.decide_child(child, dependent, first) end
end

-- A job finished or came back: if others wait for it, they are updated before the script ends.
function hf.note_ended(row)
    hf.ended[#hf.ended + 1] = row[ID]
    hf.propagates = hf.propagate
end

-- == part unknown_parents: jobs named by a new job that do not exist, or do not wait.
-- lazy: built when a script first uses one of its names.

-- Those of these ids of which neither the job nor its state was read in this script.
function hf.unread(ids)
    local cache, memo, unread, n = hf.cache, hf.state_memo, {}, 0
    if not next(cache) and not next(memo) then return ids end
    for i = 1, #ids do
        local id = ids[i]
        if cache[id] == nil and memo[id] == nil then
            n = n + 1
            unread[n], memo[id] = id, false
        end
    end
    return unread
end

-- Reads the states of these jobs, without decoding the rest of their records. The state is one letter, behind the id:
-- text of up to 31 bytes begins with a byte that has its length, longer text with a mark and its length. It is read
-- there with one call, because a new job may have thousands of parents.
hf.state_memo = {}
local SHORT_TEXT_MAX = 31
local ONE_LETTER = 161 -- what text of one byte begins with
local STATE_LETTERS = {}
for letter in string.gmatch('swrxocd', '.') do STATE_LETTERS[byte(letter)] = letter end
function hf.load_states(ids)
    local memo, missing = hf.state_memo, hf.unread(ids)
    local n = #missing
    for from = 1, n, ARGUMENTS_MAX do
        local upto = math.min(n, from + ARGUMENTS_MAX - 1)
        local found = call('HMGET', JOBS, unpack(missing, from, upto))
        for i = from, upto do
            local packed, id = found[i - from + 1], missing[i]
            if packed then
                local at = RECORD_HEAD_BYTES + #id + (#id <= SHORT_TEXT_MAX and 2 or 3)
                local kind, letter = byte(packed, at, at + 1)
                memo[id] = kind == ONE_LETTER and STATE_LETTERS[letter] or hf.unpacked_state(packed)
            end
        end
    end
end

-- The state in a packed record; false if it cannot be read.
function hf.unpacked_state(packed)
    local is_read, _, _, state = pcall(cmsgpack.unpack_limit, packed, 2, RECORD_HEAD_BYTES)
    return is_read and state or false
end

-- The state of a job for which load_states was called; nil if it does not exist or cannot be read.
function hf.state_of(id)
    local row = hf.cache[id]
    if row == nil then return hf.state_memo[id] or nil end
    return row and row[STATE] or nil
end

-- All parents that new jobs name.
function hf.named_by(links)
    local named, n = {}, 0
    for i = 1, #links do
        local parents = links[i] and links[i][LINK_PARENTS] or {}
        if #links == 1 then return parents end
        for j = 1, #parents do named[n + j] = parents[j] end
        n = n + #parents
    end
    return named
end

-- Why new jobs cannot be linked as requested, or nil: a parent that is neither stored nor earlier in the batch, or
-- a job that is to wait for one of them and does not wait.
function hf.unlinkable(jobs, known, links)
    local coming, memo = {}, hf.state_memo
    hf.load_states(hf.named_by(links))
    for i = 1, #jobs do
        local id, link = jobs[i][NEW_ID], links[i]
        if link and not known[id] then
            local parents = link[LINK_PARENTS]
            for j = 1, #parents do
                local parent = parents[j]
                if not memo[parent] and not coming[parent] and not hf.state_of(parent) then
                    return hf.refused('ParentNotFound', { parent_id = parent, child_id = id })
                end
            end
            local row = link[LINK_BEFORE] and hf.row_of(link[LINK_BEFORE])
            if link[LINK_BEFORE] and not row then
                return hf.refused('JobNotFound', { job_id = link[LINK_BEFORE] })
            end
            if row and (row[STATE] ~= 's' or row[DUE_AT] ~= DUE_AFTER_PARENTS or not hf.dependent(row[ID])) then
                return hf.refused('StateConflict', { job_id = row[ID], verb = 'join', state = row[STATE] })
            end
        end
        coming[id] = true
    end
end

-- == part edge_flaws: each edge is in both indexes; the dump's audit compares them with the jobs and what is counted.
-- lazy: built when a script first uses one of its names.

-- The name that a member begins with, escaped, and what follows.
local function split(member)
    local ends = string.find(member, '\0', 1, true) or #member
    return sub(member, 1, ends), sub(member, ends + 1)
end

function hf.check_edge(member)
    local parent, rest = split(member)
    local child = sub(rest, 2)
    if byte(child) == WATCHER then return end
    if not find(rest, '^[012]') or not call('ZSCORE', PARENTS, hf.escape(child) .. hf.plain(sub(parent, 1, -2))) then
        hf.note_flaw('edges', child, '', 'the edge is not listed with its child')
    end
end

function hf.check_related(name, id, packed)
    if call('HEXISTS', JOBS, id) == 0 and not hf.elsewhere(id) then hf.note_flaw(name, id, '', 'its job is gone') end
    if packed and not hf.read(packed) then hf.note_flaw(name, id, '', 'it cannot be read') end
end

function hf.check_parent(member)
    local escaped, parent = split(member)
    local child, found = hf.plain(sub(escaped, 1, -2)), false
    for status = 0, 2 do found = found or call('ZSCORE', EDGES, hf.escape(parent) .. status .. child) end
    if not found then hf.note_flaw('parents', child, '', 'the edge is not listed with its parent') end
end
