-- history: roll-ups by minute and hour, and the newest events.

-- == script record: add a worker's counts to the roll-ups of this minute and hour, and keep its events (R66).
-- args: now, worker, number, rollups, events, keep_minutes, keep_hours
-- An empty worker has no number. Rollups are ROLLED; events are SEEN. Without the two times nothing is pruned.
-- Returns 1; 0 if this call, or a later one, was made before: then nothing was changed.
-- Concurrency: a script runs alone, so the number is compared in the step that adds.

local EVENTS_KEPT_MAX, ROLLUPS_PER_PRUNE_MAX, RECORDINGS_REMEMBERED_SECONDS = 10000, 500, 3600
local RECORDINGS_SAMPLE = 20

local function prune(index, keep)
    local old = call('ZRANGEBYSCORE', index, '-inf', format('(%.17g', now - keep), 'LIMIT', 0, ROLLUPS_PER_PRUNE_MAX)
    if #old > 0 then
        call('ZREM', index, unpack(old))
        call('HDEL', ROLLUPS, unpack(old))
    end
end

if args.worker ~= '' then
    local packed = call('HGET', RECORDINGS, args.worker)
    local last = packed and hf.read(packed)
    if last and args.number <= last[RECORDED_NUMBER] then return { 0 } end
    call('HSET', RECORDINGS, args.worker, cpack({ args.number, now }))
end
hf.roll_up(args.rollups)
for _, one in ipairs(args.events) do
    local position = call('HINCRBY', META, 'events', 1)
    call('XADD', EVENTS, 'MAXLEN', EVENTS_KEPT_MAX, format('%.0f-0', position), 'at', format('%.17g', now),
        'name', one[SEEN_NAME], 'body', one[SEEN_BODY])
end
if args.keep_minutes then
    prune(MINUTES, args.keep_minutes)
    local some = call('HRANDFIELD', RECORDINGS, RECORDINGS_SAMPLE, 'WITHVALUES')
    for i = 1, #some, 2 do
        local last = hf.read(some[i + 1])
        local kept = last and last[RECORDED_AT] >= now - RECORDINGS_REMEMBERED_SECONDS
        if not kept then call('HDEL', RECORDINGS, some[i]) end
    end
end
if args.keep_hours then prune(HOURS, args.keep_hours) end
return { 1 }

-- == script rollups: the roll-ups of some minutes or hours.
-- args: now, span, since, before, offset, limit
-- `span` is minute or hour; those that start from `since` on and before `before`.
-- Skips `offset` of them; `limit`: how many.
-- Returns names and packed ROLLUP, in turn. Never writes.

local index = args.span == 'minute' and MINUTES or HOURS
local names = call('ZRANGEBYSCORE', index, format('%.17g', args.since), format('(%.17g', args.before),
    'LIMIT', args.offset, args.limit)
local found = {}
for from = 1, #names, ARGUMENTS_MAX do
    local upto = math.min(#names, from + ARGUMENTS_MAX - 1)
    for i, packed in ipairs(call('HMGET', ROLLUPS, unpack(names, from, upto))) do
        if packed then found[#found + 1], found[#found + 2] = names[from + i - 1], packed end
    end
end
return found

-- == part rolling: THE place that adds to roll-ups. A name is its span, its start, and queue, task, worker and outcome,
-- each escaped.
-- lazy: built when a script first uses one of its names.

local function add_counts(to, more)
    for i, number in ipairs(more) do to[i] = (to[i] or 0) + number end
    return to
end

local function add_rollup(index, span, seconds, one)
    local at = math.floor(now / seconds) * seconds
    local name = span .. format('%.0f', at) .. '\0' .. hf.escape(one[ROLLED_QUEUE]) .. hf.escape(one[ROLLED_TASK])
        .. hf.escape(one[ROLLED_WORKER]) .. hf.escape(one[ROLLED_OUTCOME])
    local packed = call('HGET', ROLLUPS, name)
    local known = packed and hf.read(packed)
    if not known then
        known = { 0, {}, {} }
        call('ZADD', index, format('%.0f', at), name)
    end
    call('HSET', ROLLUPS, name, cpack({ known[ROLLUP_COUNT] + one[ROLLED_COUNT],
        add_counts(known[ROLLUP_WAITS], one[ROLLED_WAITS]), add_counts(known[ROLLUP_RUNS], one[ROLLED_RUNS]) }))
end

function hf.roll_up(rollups)
    for _, one in ipairs(rollups) do
        add_rollup(MINUTES, 'm', 60, one)
        if one[ROLLED_WORKER] == '' then add_rollup(HOURS, 'h', 3600, one) end
    end
end

-- A job that ends without a lease: no worker counts it (R67).
function hf.count_ended(row, outcome) hf.roll_up({ { row[QUEUE], row[TASK], '', outcome, 1, {}, {} } }) end
