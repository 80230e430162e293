-- dependencies: jobs that wait for others (R83 to R85).

-- == script link: store new jobs, some of which wait for others, and their edges, all in one step.
-- args: now, jobs, numbering, links
-- raw: bodies...
-- As script enqueue; a job with parents is due in the year 3000. `links` has for each job a LINK, or false.
-- Returns what enqueue does, or a refusal. Concurrency: a script runs alone; unknown parents are refused before
-- anything is written. A server whose memory is full refuses it.

if sealed then return hf.refused_sealed() end
local answers, others = hf.enqueue(args.jobs, PLACE.bodies, args.numbering, args.links)
if not answers then return others end
hf.link_new(args.jobs, args.links, answers, others)
hf.close()
return { answers, others }

-- == script relatives: the parents and children of a job.
-- args: now, id, limit, values, beyond
-- Returns id, task, state, status and result of each parent, then of each child, by id, beyond that one; and how many
-- parents have not succeeded. Results are those of parents that succeeded, if `values` is set; false otherwise. Never
-- writes.

local function facts_of(id, status, values)
    local row = hf.row_of(id)
    local value = row and values and row[STATE] == 'o' and row[VALUE]
    if value == 1 then value = call('HGET', VALUES, id) elseif value then value = 'null' end
    return { id, row and row[TASK] or '', row and row[STATE] or 'd', status, value or false }
end

local parents, children, prefix = {}, {}, hf.escape(args.id)
local range = '(' .. sub(prefix, 1, -2) .. '\1'
for _, member in ipairs(call('ZRANGEBYLEX', PARENTS, '(' .. prefix .. args.beyond, range, 'LIMIT', 0, args.limit)) do
    local parent = sub(member, #prefix + 1)
    parents[#parents + 1] = facts_of(parent, hf.status_of(parent, args.id), args.values)
end
local found = {}
for status = 0, 2 do
    local low, high = '(' .. prefix .. status .. args.beyond, '(' .. prefix .. (status + 1)
    for _, member in ipairs(call('ZRANGEBYLEX', EDGES, low, high, 'LIMIT', 0, args.limit)) do
        found[#found + 1] = facts_of(sub(member, #prefix + 2), tostring(status))
    end
end
table.sort(found, function(one, two) return hf.precedes(one[RELATIVE_ID], two[RELATIVE_ID]) end)
for i = 1, math.min(#found, args.limit) do children[i] = found[i] end
local dependent = hf.dependent(args.id)
return { parents, children, dependent and dependent[DEPENDENT_PENDING] or 0 }

-- == part edges: store edges, and note a job that finished or came back. An edge is in `edges` by parent,
-- status and child, and in `parents` by child and parent; `dependents` counts those of a child that are not met
-- (pending) and those that failed. Statuses: 0 open, 1 failed, 2 met.
-- lazy: built when a script first uses one of its names.

local DUE_AFTER_PARENTS = 32503680000
hf.dependent_memo = {}

-- What a job with parents wants, and how many of its edges are not met and failed; false if it has none.
function hf.dependent(child)
    local found = hf.dependent_memo[child]
    if found == nil then
        local packed = call('HGET', DEPENDENTS, child)
        found = packed and hf.read(packed) or false
        hf.dependent_memo[child] = found
    end
    return found
end

function hf.keep_dependent(child, dependent)
    hf.dependent_memo[child] = dependent
    call('HSET', DEPENDENTS, child, cpack(dependent))
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

-- Stores the edges of new jobs: what waits for one of them from now on, then what it waits for.
function hf.link_new(jobs, links, answers, others)
    local stands_for = {}
    for i = 1, #others, 2 do stands_for[jobs[others[i]][NEW_ID]] = others[i + 1] end
    for i, link in ipairs(links) do
        local id = jobs[i][NEW_ID]
        if link and sub(answers, i, i) == 'c' then
            if link[LINK_BEFORE] then hf.join_waiting(link[LINK_BEFORE], id) end
            if #link[LINK_PARENTS] > 0 then hf.link(id, link, stands_for) end
        end
    end
end

-- A job that waits for others waits for this one, too (R87).
function hf.join_waiting(waiting, id)
    local dependent = hf.dependent(waiting)
    call('ZADD', EDGES, '0', hf.escape(id) .. '0' .. waiting)
    call('ZADD', PARENTS, '0', hf.escape(waiting) .. id)
    dependent[DEPENDENT_PENDING] = dependent[DEPENDENT_PENDING] + 1
    hf.keep_dependent(waiting, dependent)
end

-- Stores the edges of a new job. A call that was kept stands for the job that holds its key.
function hf.link(child, link, stands_for)
    local pending, failed, first, seen, parents, edges, listed, n = 0, 0, nil, {}, {}, {}, {}, 0
    hf.use('e')
    for i, named in ipairs(link[LINK_PARENTS]) do parents[i] = stands_for[named] or named end
    local states, prefix, policy = hf.states_of(parents), hf.escape(child), link[LINK_POLICY]
    for _, parent in ipairs(parents) do
        if not seen[parent] then
            seen[parent] = true
            local status = hf.edge_status(states[parent], policy)
            edges[n + 1], edges[n + 2] = '0', hf.escape(parent) .. status .. child
            listed[n + 1], listed[n + 2], n = '0', prefix .. parent, n + 2
            if status ~= '2' then pending = pending + 1 end
            if status == '1' then
                failed = failed + 1
                if not first or hf.precedes(parent, first) then first = parent end
            end
        end
    end
    hf.in_pieces('ZADD', EDGES, edges, n)
    hf.in_pieces('ZADD', PARENTS, listed, n)
    local dependent = { pending, failed, policy, link[LINK_DELAY] or false, link[LINK_DUE_AT] or false }
    hf.keep_dependent(child, dependent)
    if failed > 0 or pending == 0 then hf.decide_child(child, dependent, first) end
end

-- A job finished or came back: if others wait for it, they are told before the script ends.
function hf.note_ended(row)
    local prefix = hf.escape(row[ID])
    hf.flush()
    if call('ZRANGEBYLEX', EDGES, '[' .. prefix .. '0', '(' .. prefix .. '2', 'LIMIT', 0, 1)[1] then
        call('ZADD', PROPAGATING, 'NX', format('%.0f', hf.next_tick()), row[ID])
        hf.propagates = hf.propagate
    end
end

-- == part unknown_parents: jobs that a new job names and that are not there, or do not wait.
-- lazy: built when a script first uses one of its names.

-- The states of these jobs, by id, without decoding the rest of their records. A job that cannot be read has none.
hf.state_memo = {}
function hf.states_of(ids)
    local states, missing, n = {}, {}, 0
    for i = 1, #ids do
        local row = hf.cache[ids[i]]
        if row then
            states[ids[i]] = row[STATE]
        elseif row == nil and hf.state_memo[ids[i]] then
            states[ids[i]] = hf.state_memo[ids[i]]
        elseif row == nil then
            n = n + 1
            missing[n] = ids[i]
        end
    end
    for from = 1, n, ARGUMENTS_MAX do
        local upto = math.min(n, from + ARGUMENTS_MAX - 1)
        local found = call('HMGET', JOBS, unpack(missing, from, upto))
        for i = from, upto do
            local packed = found[i - from + 1]
            local fields = packed and { pcall(cmsgpack.unpack_limit, packed, FIELD.state, RECORD_HEAD_BYTES) }
            local state = fields and fields[FIELD.state + 2] -- behind the success and the next offset
            states[missing[i]], hf.state_memo[missing[i]] = state or nil, state or nil
        end
    end
    return states
end

-- Why new jobs may not be linked as they ask for, or nil: a parent that is neither stored nor earlier in the batch, or
-- a job that is to wait for one of them and does not wait.
function hf.unlinkable(jobs, known, links)
    local coming = {}
    for i = 1, #jobs do
        local id, link = jobs[i][NEW_ID], links[i]
        if link and not known[id] then
            local states = hf.states_of(link[LINK_PARENTS])
            for _, parent in ipairs(link[LINK_PARENTS]) do
                if not coming[parent] and not states[parent] then
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

-- == part propagation: bring edges in line with their parents' new states, and children with their edges. Bounded.
-- lazy: built when a script first uses one of its names.

-- Looks at no more than `most` edges and parents, the parent that changed first before the others. Returns how many.
function hf.propagate(most)
    local done = 0
    hf.propagates = false
    hf.flush()
    while done < most do
        local parent = call('ZRANGE', PROPAGATING, 0, 0)[1]
        if not parent then break end
        local looked = hf.change_edges(parent, hf.row_of(parent), most - done)
        if looked < most - done then call('ZREM', PROPAGATING, parent) end
        done = done + math.max(1, looked)
    end
    return done
end

-- Of one parent: failed edges unless it is dead or cancelled, open ones unless it is live.
function hf.change_edges(parent, row, most)
    if not row then return 0 end
    local prefix, state = hf.escape(parent), row[STATE]
    local low, high = '[' .. prefix .. '0', '(' .. prefix .. '2'
    if state == 'd' or state == 'c' then high = '(' .. prefix .. '1' end
    if hf.live_states[state] then low = '[' .. prefix .. '1' end
    local members = call('ZRANGEBYLEX', EDGES, low, high, 'LIMIT', 0, most)
    for _, member in ipairs(members) do
        local before, child = sub(member, #prefix + 1, #prefix + 1), sub(member, #prefix + 2)
        local dependent = hf.dependent(child) or { 1, 0, 'bury', false, false }
        local after = hf.edge_status(state, dependent[DEPENDENT_POLICY])
        hf.put(EDGES, member, false)
        hf.put(EDGES, prefix .. after .. child, '0')
        hf.count_edge(dependent, after == '2' and -1 or 0, (after == '1' and 1 or 0) - (before == '1' and 1 or 0))
        hf.keep_dependent(child, dependent)
        hf.decide_child(child, dependent, parent)
    end
    hf.flush()
    return #members
end

function hf.count_edge(dependent, pending, failed)
    dependent[DEPENDENT_PENDING] = math.max(0, dependent[DEPENDENT_PENDING] + pending)
    dependent[DEPENDENT_FAILED] = math.max(0, dependent[DEPENDENT_FAILED] + failed)
end

-- Lets a job be what its edges say: it waits, is due, is dead or cancelled with reason "parent", or comes back. One
-- that somebody brought into play, ended or rescheduled meanwhile is left alone. `parent` is the one that failed, if
-- one did.
function hf.decide_child(child, dependent, parent)
    local row, failed = hf.row_of(child), dependent[DEPENDENT_FAILED] > 0
    if not row then return end
    if (row[STATE] == 'd' or row[STATE] == 'c') and row[REASON] == 'parent' and not failed then hf.come_back(row) end
    if row[STATE] ~= 's' or row[DUE_AT] ~= DUE_AFTER_PARENTS then return end
    if failed and dependent[DEPENDENT_POLICY] == 'cancel' then
        local was_in, had_key = hf.leave(row)
        row[REASON] = 'parent'
        hf.finish(row, was_in, had_key, 'c', RETAIN_SECONDS)
        hf.count_ended(row, 'cancelled')
    elseif failed then
        hf.bury_unstarted(row, 'parent', format('text:parent', parent))
        hf.count_ended(row, 'dead')
    elseif dependent[DEPENDENT_PENDING] == 0 then
        local wanted, was_in, had_key = dependent[DEPENDENT_DUE_AT], hf.leave(row)
        row[DUE_AT] = wanted and math.max(now, wanted) or now + (dependent[DEPENDENT_DELAY] or 0)
        if row[EXPIRES_AT] then row[EXPIRES_AT] = row[DUE_AT] + (row[EXPIRES_AT] - DUE_AFTER_PARENTS) end
        hf.enter(row, was_in, had_key)
        hf.to_wake[row[QUEUE]] = true
    end
end

-- A job that ended because of a parent waits again, with fresh budgets and its key, unless another job holds that.
function hf.come_back(row)
    local taken = row[KEY] and hf.key_taken(hf.key_name(row))
    if taken and taken ~= row then return end
    local was_dead = row[STATE] == 'd'
    hf.requeue(row, DUE_AFTER_PARENTS)
    hf.mark(row, { kind = 'revive', text = 'parent' })
    local logical = hf.logical_of(row)
    local letter = was_dead and hf.letter_at(logical)
    if letter and letter.id == row[ID] then
        letter.revived_at, letter.revive_at = now, nil
        hf.keep_letter(logical, letter)
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
    if not find(rest, '^[012]') or not call('ZSCORE', PARENTS, hf.escape(child) .. hf.plain(sub(parent, 1, -2))) then
        hf.note_flaw('edges', child, '', 'the edge is not listed with its child')
    end
end

function hf.check_related(name, id, packed)
    if call('HEXISTS', JOBS, id) == 0 then hf.note_flaw(name, id, '', 'its job is gone') end
    if packed and not hf.read(packed) then hf.note_flaw(name, id, '', 'it cannot be read') end
end

function hf.check_parent(member)
    local escaped, parent = split(member)
    local child, found = hf.plain(sub(escaped, 1, -2)), false
    for status = 0, 2 do found = found or call('ZSCORE', EDGES, hf.escape(parent) .. status .. child) end
    if not found then hf.note_flaw('parents', child, '', 'the edge is not listed with its parent') end
end

-- == part forgotten_edges: edges of jobs that go, and jobs that may not go yet.
-- lazy: built when a script first uses one of its names.

-- A job that waits for this one, or nil.
function hf.awaited_by(id)
    local prefix = hf.escape(id)
    for _, member in ipairs(call('ZRANGEBYLEX', EDGES, '[' .. prefix .. '0', '(' .. prefix .. '1')) do
        local child = hf.row_of(sub(member, #prefix + 2))
        if child and child[STATE] == 's' and child[DUE_AT] == DUE_AFTER_PARENTS then return child[ID] end
    end
end

function hf.is_needed(id)
    if call('ZSCORE', PROPAGATING, id) then return true end
    local prefix = hf.escape(id)
    local members, ids = call('ZRANGEBYLEX', EDGES, '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1'), {}
    for i, member in ipairs(members) do ids[i] = sub(member, #prefix + 2) end
    for _, state in pairs(hf.states_of(ids)) do
        if hf.live_states[state] then return true end
    end
    return false
end

-- The jobs that may be pruned: children that have not finished need their parents. The others are kept a while.
function hf.without_needed(ids)
    local free = {}
    for _, id in ipairs(ids) do
        local row = hf.cache[id]
        if not hf.is_needed(id) then
            free[#free + 1] = id
        elseif row[PRUNE_AT] then
            local was_in, had_key = hf.leave(row)
            row[PRUNE_AT] = math.max(row[PRUNE_AT], now + REMEMBER_SECONDS_MIN)
            hf.enter(row, was_in, had_key)
        end
    end
    hf.flush()
    hf.save_rows()
    return free
end

-- Of jobs that go: those that waited for them count them no longer.
function hf.forget_edges(ids)
    local edges, e, listed, l = {}, 0, {}, 0
    for _, id in ipairs(ids) do
        local prefix = hf.escape(id)
        local range = '(' .. sub(prefix, 1, -2) .. '\1'
        for _, member in ipairs(call('ZRANGEBYLEX', EDGES, '[' .. prefix, range)) do
            local status, child = sub(member, #prefix + 1, #prefix + 1), sub(member, #prefix + 2)
            local dependent = status ~= '2' and hf.dependent(child)
            if dependent then
                hf.count_edge(dependent, -1, status == '1' and -1 or 0)
                hf.keep_dependent(child, dependent)
            end
            edges[e + 1], listed[l + 1] = member, hf.escape(child) .. id
            e, l = e + 1, l + 1
        end
        for _, member in ipairs(call('ZRANGEBYLEX', PARENTS, '[' .. prefix, range)) do
            local parent = hf.escape(sub(member, #prefix + 1))
            for status = 0, 2 do edges[e + 1 + status] = parent .. status .. id end
            listed[l + 1] = member
            e, l = e + 3, l + 1
        end
        hf.dependent_memo[id] = nil
    end
    hf.in_pieces('ZREM', EDGES, edges, e)
    hf.in_pieces('ZREM', PARENTS, listed, l)
    hf.in_pieces('HDEL', DEPENDENTS, ids, #ids)
    hf.in_pieces('ZREM', PROPAGATING, ids, #ids)
end
