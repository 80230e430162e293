-- shard: dependencies on jobs in other shards (R115 to R119).
-- A shard that watches a job is in `edges` like a child, named by a byte 2 and the shard; it is not in `parents`. A
-- parent elsewhere has its edges here, and in `elsewhere` its shard and its last news. `outbox` has the notes for other
-- shards by tick: j a job that belongs there, w a parent to watch, n the news of a job, a a job to be pruned.

-- == script watch: list a shard with these jobs.
-- args: now, ids, shard
-- Returns id, state, task and tick of those that are here. Concurrency: a script runs alone; the tick orders this reply
-- among all news of the job.

local found = {}
for _, id in ipairs(args.ids) do
    local row = hf.row_of(id)
    if row then
        hf.watch(row, args.shard)
        found[#found + 1] = { id, row[STATE], row[TASK], format('%.0f', hf.next_tick()) }
    end
end
hf.save_tick()
return found

-- == script unwatch: a shard no longer watches a job.
-- args: now, id, shard
-- Returns 1. Concurrency: a script runs alone.

hf.unwatch(hf.escape(args.id), args.shard)
return { 1 }

-- == script follow: bring jobs in line with parents elsewhere.
-- args: now, news
-- `news` are NEWS. Returns 1. Concurrency: a script runs alone; news with a lower tick than those known are ignored.

for _, one in ipairs(args.news) do
    local id = one[NEWS_ID]
    local known = hf.elsewhere(id)
    if known and known[REMOTE_TICK] < one[NEWS_TICK] then
        hf.keep_elsewhere(id, { known[REMOTE_SHARD], one[NEWS_STATE], one[NEWS_TASK], one[NEWS_TICK] })
        call('ZADD', PROPAGATING, 'NX', format('%.0f', hf.next_tick()), id)
        hf.propagates = hf.propagate
    end
end
hf.close()
return { 1 }

-- == script let_go: forget a parent elsewhere, unless a child needs it.
-- args: now, id, unless
-- `unless` is unfinished, waiting or never. Returns the child that needs it, and then changed nothing; else ''.
-- Concurrency: a script runs alone.

local id, prefix, children = args.id, hf.escape(args.id), {}
if not hf.elsewhere(id) then return { '' } end
for _, member in ipairs(call('ZRANGEBYLEX', EDGES, '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1')) do
    local child = sub(member, #prefix + 2)
    local row = hf.row_of(child)
    local waits = row and sub(member, #prefix + 1, #prefix + 1) == '0' and row[STATE] == 's'
        and row[DUE_AT] == DUE_AFTER_PARENTS
    if row and (args.unless == 'unfinished' and hf.live_states[row[STATE]] or args.unless == 'waiting' and waits) then
        return { child }
    end
    children[#children + 1] = child
end
hf.forget_edges({ id })
hf.forget_elsewhere({ id })
for _, child in ipairs(children) do
    local dependent = hf.dependent(child)
    if dependent then hf.decide_child(child, dependent, id) end
end
hf.close()
return { '' }

-- == script outbox: the oldest notes.
-- args: now, limit, after, bytes
-- `after` is the tick to continue after; no more are returned once they have `bytes`. Returns of each its member and
-- tick; the noted job, or the shard to watch in, or ''; the shards that watch the job; and its state, task and a new
-- tick, if that is news. Concurrency: a script runs alone.

local low, posts, size = format('(%.0f', args.after), {}, 0
local members = call('ZRANGEBYSCORE', OUTBOX, low, '+inf', 'WITHSCORES', 'LIMIT', 0, args.limit)
for i = 1, #members, 2 do
    if size >= args.bytes then break end
    local kind, id = sub(members[i], 1, 1), sub(members[i], 2)
    local row, text, shards = kind == 'n' and hf.row_of(id), '', {}
    if kind == 'j' then text = call('HGET', NOTES, id) or '' end
    if kind == 'w' then text = (hf.elsewhere(id) or { '' })[REMOTE_SHARD] end
    if kind == 'n' or kind == 'a' then shards = hf.watchers(id) end
    size = size + #text
    local post = { members[i], members[i + 1], text, shards }
    if row then
        post[#post + 1], post[#post + 2] = row[STATE], row[TASK]
        post[#post + 1] = format('%.0f', hf.next_tick())
    end
    posts[#posts + 1] = post
end
hf.save_tick()
return posts

-- == script delivered: remove notes.
-- args: now, posts
-- `posts` are POST. Returns 1. Concurrency: a script runs alone; one that was noted again has another tick and stays.

for _, post in ipairs(args.posts) do
    local member = post[POST_MEMBER]
    if tonumber(call('ZSCORE', OUTBOX, member) or -1) == post[POST_TICK] then
        call('ZREM', OUTBOX, member)
        if sub(member, 1, 1) == 'j' then call('HDEL', NOTES, sub(member, 2)) end
    end
end
return { 1 }

-- == script elsewhere: where parents are.
-- args: now, ids
-- Returns the shard of each, '' for one that is not elsewhere. Never writes.

local shards = {}
for i, id in ipairs(args.ids) do shards[i] = (hf.elsewhere(id) or { '' })[REMOTE_SHARD] end
return shards

-- == script watchers: the shards that watch a job.
-- args: now, id
-- Never writes.

return hf.watchers(args.id)

-- == part elsewhere: parents in other shards, as last reported.
-- lazy: built when a script first uses one of its names.

function hf.elsewhere(id)
    local packed = call('HGET', ELSEWHERE, id)
    local found = packed and hf.read(packed)
    return type(found) == 'table' and found or false
end

function hf.keep_elsewhere(id, remote) call('HSET', ELSEWHERE, id, cpack(remote)) end

-- A parent as far as its children need it: a row with a state.
function hf.parent_of(id)
    local row = hf.row_of(id)
    if row then return row end
    local remote = hf.elsewhere(id)
    row = remote and { id }
    if row then row[STATE], row[TASK] = remote[REMOTE_STATE], remote[REMOTE_TASK] end
    return row
end

-- Forgets those of these parents, whose edges were removed, that no job here waits for.
function hf.forget_elsewhere(ids)
    if call('HLEN', ELSEWHERE) == 0 then return end
    hf.flush()
    for _, id in ipairs(ids) do
        local prefix = hf.escape(id)
        local left = call('ZRANGEBYLEX', EDGES, '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1', 'LIMIT', 0, 1)[1]
        if not left then
            call('HDEL', ELSEWHERE, id)
            call('ZREM', OUTBOX, 'w' .. id)
        end
    end
end

-- == part watchers: shards that are notified of a job's end, and the outbox.
-- lazy: built when a script first uses one of its names.

function hf.post(kind, id)
    call('ZADD', OUTBOX, format('%.0f', hf.next_tick()), kind .. id)
    hf.save_tick()
end

-- Drops the notes about removed jobs.
function hf.forget_posts(ids)
    if call('ZCARD', OUTBOX) == 0 then return end
    for _, id in ipairs(ids) do call('ZREM', OUTBOX, 'n' .. id, 'a' .. id) end
end

function hf.unwatch(prefix, shard)
    for status = 0, 2 do call('ZREM', EDGES, prefix .. status .. '\2' .. shard) end
end

-- Returns the status of the watcher's edge: not 0 if there is news for it.
function hf.watch(row, shard)
    local prefix, status = hf.escape(row[ID]), hf.edge_status(row[STATE], 'bury')
    hf.unwatch(prefix, shard)
    call('ZADD', EDGES, '0', prefix .. status .. '\2' .. shard)
    hf.use('e')
    return status
end

function hf.watchers(id)
    local prefix, shards = hf.escape(id), {}
    for status = 0, 2 do
        local low = prefix .. status .. '\2'
        for _, member in ipairs(call('ZRANGEBYLEX', EDGES, '[' .. low, '(' .. prefix .. status .. '\3')) do
            shards[#shards + 1] = sub(member, #low + 1)
        end
    end
    return shards
end

-- Whether jobs in other shards may need a job that is to be pruned; posts a note that asks them.
function hf.is_needed_elsewhere(id)
    if call('ZSCORE', OUTBOX, 'n' .. id) then return true end
    if not hf.watchers(id)[1] then return false end
    hf.post('a', id)
    return true
end

-- == part ties: what a step stores for other shards, besides its jobs. Ties are TIES.
-- lazy: built when a script first uses one of its names.

-- Why these ties cannot be stored, or nil. Writes nothing; joins that already exist are removed from the list.
function hf.untieable(ties)
    for _, tie in ipairs(ties[TIES_PARENTS]) do hf.state_memo[tie[TIE_ID]] = 's' end
    for _, join in ipairs(ties[TIES_JOINS]) do
        local waiting = join[JOIN_WAITING]
        local row = hf.row_of(waiting)
        local waits = row and row[STATE] == 's' and row[DUE_AT] == DUE_AFTER_PARENTS and hf.dependent(waiting)
        if call('ZSCORE', PARENTS, hf.escape(waiting) .. join[JOIN_PARENT]) or ties[TIES_NOTED] and not waits then
            join[JOIN_SHARD] = false
        elseif not row then
            return hf.refused('JobNotFound', { job_id = waiting })
        elseif not waits then
            return hf.refused('StateConflict', { job_id = waiting, verb = 'join', state = row[STATE] })
        end
    end
end

function hf.tie(ties)
    for _, join in ipairs(ties[TIES_JOINS]) do
        if join[JOIN_SHARD] then
            if not hf.elsewhere(join[JOIN_PARENT]) then
                hf.keep_elsewhere(join[JOIN_PARENT], { join[JOIN_SHARD], 's', '', 0 })
            end
            hf.join_waiting(join[JOIN_WAITING], join[JOIN_PARENT])
        end
    end
    hf.flush()
    hf.save_dependents()
    for _, note in ipairs(ties[TIES_NOTES]) do
        call('HSET', NOTES, note[NOTE_ID], note[NOTE_TEXT])
        hf.post('j', note[NOTE_ID])
    end
    for _, tie in ipairs(ties[TIES_PARENTS]) do
        local parent, prefix = tie[TIE_ID], hf.escape(tie[TIE_ID])
        local low, high = '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1'
        if call('ZRANGEBYLEX', EDGES, low, high, 'LIMIT', 0, 1)[1] then -- a job was stored that waits for it
            if not hf.elsewhere(parent) then hf.keep_elsewhere(parent, { tie[TIE_SHARD], 's', '', 0 }) end
            hf.post('w', parent)
        end
    end
    for _, tie in ipairs(ties[TIES_WATCHERS]) do
        local row = hf.row_of(tie[TIE_ID])
        if row and hf.watch(row, tie[TIE_SHARD]) ~= '0' then hf.post('n', row[ID]) end
    end
end

-- == part shard_flaws: parents elsewhere have edges here; a noted job is in the outbox, and the other way round.
-- lazy: built when a script first uses one of its names.

function hf.check_elsewhere(id)
    local prefix = hf.escape(id)
    local range = { '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1', 'LIMIT', 0, 1 }
    if not hf.elsewhere(id) then hf.note_flaw('elsewhere', id, '', 'it cannot be read') end
    if not call('ZRANGEBYLEX', EDGES, unpack(range))[1] then
        hf.note_flaw('elsewhere', id, '', 'no job here waits for it')
    end
end

function hf.check_note(id)
    if not call('ZSCORE', OUTBOX, 'j' .. id) then hf.note_flaw('notes', id, '', 'it is not in the outbox') end
end

function hf.check_post(member)
    local kind, id = sub(member, 1, 1), sub(member, 2)
    local key = kind == 'j' and NOTES or kind == 'w' and ELSEWHERE or JOBS
    if not find(kind, '^[jwna]') or call('HEXISTS', key, id) == 0 then
        hf.note_flaw('outbox', id, '', 'it is nothing that another shard must hear')
    end
end
