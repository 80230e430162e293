-- prune: remove finished jobs: after their retention, beyond the newest N, or when memory is short.

-- == script prune: remove finished jobs past their retention, or finished before a given time; also lapsed rate states
-- and ids that no longer need to be known.
-- args: now, limit, before, from
-- `before` is a time or nil, `from` the position in the index to continue from. Returns how many jobs, where to
-- continue (-1: end), and how many rate states.
-- Concurrency: a script runs alone. A dead job that holds its letter is not in the index this reads, so it is never
-- seen here.

if sealed then return hf.refused_sealed() end
local SEEN_MAX = 1000
local limit, before, from = args.limit, args.before, args.from
local ids, next_from = {}, -1
if before then
    local found = call('ZRANGE', PRUNABLE, from, from + SEEN_MAX - 1)
    for _, row in ipairs(hf.rows_at('prunable', PRUNABLE, found, found, 'ocd')) do
        local id = row[ID]
        if not row[PRUNE_AT] then
            hf.set_aside('prunable', PRUNABLE, id, row) -- a dead job that holds its letter
        elseif row[FINISHED_AT] <= before and #ids < limit and hf.is_past_window(row) then
            ids[#ids + 1] = id
        end
    end
    if #ids == limit then
        next_from = from -- what is left of this page has not been judged
    elseif #found == SEEN_MAX then
        next_from = from + SEEN_MAX - #ids
    end
else
    local found = call('ZRANGEBYSCORE', PRUNABLE, '-inf', now, 'LIMIT', 0, limit)
    local function prune_at(row) return row[PRUNE_AT] end
    for i, row in ipairs(hf.rows_late('prunable', PRUNABLE, found, found, 'ocd', prune_at)) do ids[i] = row[ID] end
end
if hf.any('e') then ids = hf.without_needed(ids) end
hf.remove_rows(ids)
local lapsed = call('ZRANGEBYSCORE', LAPSING, '-inf', now, 'LIMIT', 0, SEEN_MAX)
hf.in_pieces('HDEL', FLOWS, lapsed, #lapsed)
hf.in_pieces('HDEL', GROUP_FLOWS, lapsed, #lapsed)
hf.in_pieces('ZREM', LAPSING, lapsed, #lapsed)
if hf.any('m') then
    local past = call('ZRANGEBYSCORE', REMEMBERED, '-inf', now, 'LIMIT', 0, SEEN_MAX)
    hf.in_pieces('ZREM', REMEMBERED, past, #past)
    if call('ZCARD', REMEMBERED) == 0 then hf.no_longer_use('m') end
end
return { #ids, next_from, #lapsed }

-- == script retain: apply a task's retention rule, one page: remove finished jobs beyond the newest N, and dead letters
-- with their jobs beyond the newest N or an age, oldest first. Also list finished jobs of tasks that did not keep a
-- number of them before.
-- args: now, what, task, number, left, limit, page
-- raw: after
-- `what` is list, count, dead_age or dead_count; `number` the number to keep, or the time before which letters go;
-- `left` how many are still to be checked, nil for the first page; `limit` how many may be removed; `page` the page
-- size; `after` the member to continue after.
-- Returns how many were removed, how many are still to be checked, the member to continue after ('' at the end).
-- Never removes a job finished within REMEMBER_SECONDS_MIN, one whose key's window has not ended, nor the letter of a
-- live job. Concurrency: a script runs alone.

if sealed then return hf.refused_sealed() end
local what, task, number, left, limit, page = args.what, args.task, args.number, args.left, args.limit, args.page

if what == 'list' then
    local after = call('HGET', META, 'listing')
    if not after then return { 0, 0, '' } end
    local found = call('ZRANGEBYLEX', FINISHED, after == '' and '[c' or '(' .. after, '(d', 'LIMIT', 0, page)
    if #found < page then
        local from = sub(after, 1, 1) == 'o' and '(' .. after or '[o'
        for _, member in ipairs(call('ZRANGEBYLEX', FINISHED, from, '+', 'LIMIT', 0, page - #found)) do
            found[#found + 1] = member
        end
    end
    local ids = {}
    for i, member in ipairs(found) do ids[i] = sub(member, (string.find(member, '\0', 2, true) or #member) + 9) end
    for _, row in ipairs(hf.rows_at('finished', FINISHED, found, ids, 'oc')) do hf.list_kept(row, true) end
    hf.flush()
    local last = #found == page and found[page] or ''
    if last == '' then call('HDEL', META, 'listing') else call('HSET', META, 'listing', last) end
    return { 0, 0, last }
end

local key, prefix = what == 'count' and KEPT or DEAD, hf.escape(task)
local low, high = '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1'
if what == 'dead_age' then
    if number < 0 then return { 0, 0, '' } end -- the clock is younger than the age
    high = '(' .. prefix .. spack('>d', number) .. '\255'
end
if not left then left = call('ZLEXCOUNT', key, low, high) - (what == 'dead_age' and 0 or number) end
if left <= 0 then return { 0, 0, '' } end
if ARGV.after ~= '' then low = '(' .. ARGV.after end
local members = call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, math.min(left, page))

local function may_go(row)
    return row[FINISHED_AT] and row[FINISHED_AT] <= now - REMEMBER_SECONDS_MIN and hf.is_past_window(row)
end

local ids, last = {}, ''
for _, member in ipairs(members) do
    if #ids == limit then break end
    last, left = member, left - 1
    local tail = sub(member, #prefix + 17)
    local letter = key == DEAD and hf.letter_at(tail)
    local row = hf.row_of(letter and letter.id or tail)
    if row and may_go(row) and (key == KEPT or row[STATE] == 'd') and not (hf.any('e') and hf.is_needed(row[ID])) then
        if letter then hf.drop_letter(tail) end
        ids[#ids + 1] = row[ID]
    end
end
hf.remove_rows(ids)
if next(hf.touched) then hf.close() end -- letters went that stopped groups
return { #ids, left, left > 0 and last or '' }

-- == script relieve: while the server is short of memory, remove finished jobs before their retention ends, in the
-- order in which they would be pruned. Their ids stay known for as long as those of all finished jobs.
-- args: now, page, refused
-- `page`: how many to check; `refused`: whether the server has just refused a call for lack of memory. Returns how many
-- jobs were removed, and 1 if there may be more to remove.
-- Never removes a job finished less than RESULT_SECONDS ago, because a caller may be waiting for its result; nor one
-- whose key's window has not ended; nor a dead job that holds its letter, which is not in the index this reads.
-- Concurrency: a script runs alone.

local RESULT_SECONDS, SHORT_SHARE = 10, 0.9
if sealed then return hf.refused_sealed() end
local page, is_refused = args.page, args.refused

local function is_short()
    local told = redis.pcall('INFO', 'memory')
    if type(told) ~= 'string' then return false end
    local used, most = string.match(told, 'used_memory:(%d+)'), string.match(told, 'maxmemory:(%d+)')
    return used and most and tonumber(most) > 0 and tonumber(used) > SHORT_SHARE * tonumber(most)
end

if not is_refused and not is_short() then return { 0, 0 } end
local found, ids = call('ZRANGE', PRUNABLE, 0, page - 1), {}
for _, row in ipairs(hf.rows_at('prunable', PRUNABLE, found, found, 'ocd')) do
    local ended = row[FINISHED_AT]
    if not row[PRUNE_AT] then
        hf.set_aside('prunable', PRUNABLE, row[ID], row) -- a dead job that holds its letter
    elseif ended <= now - RESULT_SECONDS and hf.is_past_window(row)
        and (not hf.any('e') or hf.is_needed(row[ID]) == false) then
        ids[#ids + 1] = row[ID]
        if ended > now - REMEMBER_SECONDS_MIN then
            hf.put(REMEMBERED, row[ID], hf.score_of(ended + REMEMBER_SECONDS_MIN))
            hf.use('m')
        end
    end
end
hf.remove_rows(ids)
return { #ids, #ids == page and 1 or 0 }

-- == part removal: remove jobs with all their data; the caller refills their groups. It made sure that none of them
-- holds a letter.
-- lazy: built when a script first uses one of its names.

function hf.remove_rows(ids)
    if hf.any('e') then hf.forget_edges(ids) end
    if hf.any('s') then hf.forget_steps(ids) end
    for _, id in ipairs(ids) do
        local row = hf.cache[id]
        hf.list(row, false)
        hf.put(SEQS, id, false)
        local was_in = hf.in_play(row) -- not yet finished, or dead and stopping its group
        if was_in then
            hf.put(PLAY, was_in .. id, false)
            hf.touch(was_in)
        end
        if row[KEY] and hf.holds(row) then -- its window has passed
            hf.set_holds(row, false)
            hf.note_key(row, true)
        end
    end
    hf.flush()
    hf.save_keys()
    for _, key in ipairs({ JOBS, BODIES, VALUES, ERRORS, PROGRESS, LOGS, MARKS }) do
        hf.in_pieces('HDEL', key, ids, #ids)
    end
end

-- Removes jobs that have just succeeded, except those that others refer to or whose key has a window (R108).
function hf.remove_ended()
    local gone = {}
    for _, id in ipairs(hf.removes) do
        local prefix, linked = hf.escape(id), 0
        local range = '(' .. sub(prefix, 1, -2) .. '\1'
        if hf.any('e') then
            linked = call('ZLEXCOUNT', EDGES, '[' .. prefix, range) + call('ZLEXCOUNT', PARENTS, '[' .. prefix, range)
        end
        if linked == 0 and not (hf.cache[id][KEY] and hf.holds(hf.cache[id])) then gone[#gone + 1] = id end
    end
    hf.remove_rows(gone)
    for _, id in ipairs(gone) do hf.cache[id], hf.changed[id] = false, nil end
    hf.removes = {}
end

-- Whether the window of its key has ended, or it has none.
function hf.is_past_window(row)
    local ends = hf.window_end(row)
    return not ends or ends <= now
end

-- == part forgotten_edges: remove the edges of removed jobs, and find jobs that may not be removed yet.
-- lazy: built when a script first uses one of its names.

local EDGES_PAGE = 1000 -- edges of one job that are looked at together
local FEW_EDGES_MAX = 100 -- up to this many of a job are removed together with those of others
local EDGES_LOOKED_MAX = 5000 -- of all jobs that one pass may remove; of a single one, those with its parents besides

-- A job that waits for this one, or nil.
function hf.awaited_by(id)
    local prefix = hf.escape(id)
    local low, high, members = '[' .. prefix .. '0', '(' .. prefix .. '1', nil
    repeat
        members = call('ZRANGEBYLEX', EDGES, low, high, 'LIMIT', 0, 100)
        for _, member in ipairs(members) do
            local child = hf.row_of(sub(member, #prefix + 2))
            if child and child[STATE] == 's' and child[DUE_AT] == DUE_AFTER_PARENTS then return child[ID] end
            low = '(' .. member
        end
    until #members == 0
    return hf.watchers(id)[1] and 'elsewhere' or nil
end

-- Returns whether an unfinished child needs this job, and how many edges were read. nil: a later pass has to check more
-- children; so that it gets further, the edges to finished ones are removed.
function hf.is_needed(id)
    if call('ZSCORE', PROPAGATING, id) then return true, 0 end
    local prefix = hf.escape(id)
    local low, high = '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1'
    local members, ids = call('ZRANGEBYLEX', EDGES, low, high, 'LIMIT', 0, EDGES_PAGE), {}
    for i, member in ipairs(members) do ids[i] = sub(member, #prefix + 2) end
    hf.load_states(ids)
    for _, child in ipairs(ids) do
        if hf.live_states[hf.state_of(child)] then return true, #members end
    end
    if #members == 0 and call('ZCARD', OUTBOX) == 0 then return false, 0 end
    if #members < EDGES_PAGE or hf.watchers(id)[1] then return hf.is_needed_elsewhere(id), #members end
    hf.forget_children(id, members)
    hf.save_dependents()
end

-- The jobs that may be pruned. Unfinished children need their parents, which are kept for a while.
-- Bounded: once enough edges were read, the rest is left for a later pass.
function hf.without_needed(ids)
    local free, looked = {}, 0
    for _, id in ipairs(ids) do
        local row, prefix, needed, children = hf.cache[id], hf.escape(id), hf.is_needed(id)
        looked = looked + (children or EDGES_PAGE)
        if needed == false then
            looked = looked + call('ZLEXCOUNT', PARENTS, '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1')
            if looked <= EDGES_LOOKED_MAX or #free == 0 then free[#free + 1] = id end
        elseif needed and row[PRUNE_AT] then
            local was_in, had_key = hf.leave(row)
            row[PRUNE_AT] = math.max(row[PRUNE_AT], now + REMEMBER_SECONDS_MIN)
            hf.enter(row, was_in, had_key)
        end
        if looked > EDGES_LOOKED_MAX then break end
    end
    hf.flush()
    hf.save_rows()
    return free
end

-- Removes neighbours in an index.
function hf.drop(key, members)
    if #members > FEW_EDGES_MAX then
        call('ZREMRANGEBYLEX', key, '[' .. members[1], '[' .. members[#members])
    else
        for _, member in ipairs(members) do hf.put(key, member, false) end
    end
end

-- For a removed job: update the counts of the jobs that waited for it, found in these edges.
function hf.forget_children(id, members)
    local prefix, children, counted = hf.escape(id), {}, {}
    for i, member in ipairs(members) do
        children[i] = sub(member, #prefix + 2)
        hf.put(PARENTS, hf.escape(children[i]) .. id, false)
        if sub(member, #prefix + 1, #prefix + 1) ~= '2' then counted[i] = children[i] end -- they come first
    end
    hf.load_dependents(counted)
    for i, child in ipairs(counted) do
        local dependent = hf.dependent_memo[child]
        if dependent then
            hf.count_edge(dependent, -1, sub(members[i], #prefix + 1, #prefix + 1) == '1' and -1 or 0)
            hf.keep_dependent(child, dependent)
        end
    end
    hf.drop(EDGES, members)
end

-- For a removed job: remove it as a child of its parents, which are added to `parents`.
function hf.forget_parents(id, parents)
    local prefix, dependent = hf.escape(id), hf.dependent(id)
    local members = call('ZRANGEBYLEX', PARENTS, '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1')
    local all_met = dependent and dependent[DEPENDENT_PENDING] == 0
    local names = {}
    for i, member in ipairs(members) do names[i] = sub(member, #prefix + 1) end
    local is_odd, first = hf.any_odd(names), #parents
    for i, name in ipairs(names) do
        parents[first + i] = name
        names[i] = is_odd and hf.escape(name) or name .. '\0'
    end
    for from = 1, #names, EDGES_PAGE do
        hf.drop_edges(id, names, from, math.min(#names, from + EDGES_PAGE - 1), all_met and '201' or '021')
    end
    hf.drop(PARENTS, members)
end

-- Removes the edges of a job from these parents, escaped: its statuses are tried in turn until none is left.
function hf.drop_edges(id, parents, from, upto, statuses)
    local left, edges = upto - from + 1, {}
    for status in string.gmatch(statuses, '.') do
        local ends = status .. id
        for i = from, upto do edges[i - from + 1] = parents[i] .. ends end
        left = left - call('ZREM', EDGES, unpack(edges))
        if left == 0 then return end
    end
end

-- For removed jobs: update the counts of the jobs that waited for them. The caller flushes.
function hf.forget_edges(ids)
    local parents = {}
    hf.load_dependents(ids)
    for _, id in ipairs(ids) do
        local prefix = hf.escape(id)
        hf.forget_children(id, call('ZRANGEBYLEX', EDGES, '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1'))
        hf.forget_parents(id, parents)
    end
    hf.save_dependents()
    hf.in_pieces('HDEL', DEPENDENTS, ids, #ids)
    hf.in_pieces('ZREM', PROPAGATING, ids, #ids)
    hf.forget_elsewhere(parents)
    hf.forget_posts(ids)
end
