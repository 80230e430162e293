-- prelude: how every script begins and ends, and the helpers they share.

-- == part opening: local aliases, the script's arguments, the time, and the check of the schema version. Everything
-- that parts share is a field of ONE table; assembler.py explains why. ARGV[1] is the packed list of the script's args;
-- args.now is nil for the server's clock.
-- Reads TIME once. Returns early with a refusal if the store has another schema version.

local call, cpack, cunpack, spack = redis.call, cmsgpack.pack, cmsgpack.unpack, struct.pack
local sub, byte, find, format, concat = string.sub, string.byte, string.find, string.format, table.concat
local hf = {}
local ARGUMENTS_MAX = 2000 -- per call: Lua's stack holds some thousands; even, for field and value

local args = cunpack(ARGV[1])
local given = args.now
local now = given
if not now then
    local time = call('TIME')
    now = tonumber(time[TIME_SECONDS]) + tonumber(time[TIME_MICROS]) / 1000000
end

local meta = call('HMGET', META, META_FIELDS)
if meta.schema ~= SCHEMA_VERSION then
    return { 'refused', 'SchemaMismatch', cpack({ found = tonumber(meta.schema) or 0 }) }
end

-- The seal's text while the store is sealed, else false.
local sealed = meta.sealed

-- == part closing: how every script that changed something ends: refill groups, write everything, emit wake-ups.
-- No write here can fail: the types of all keys were checked when the store was opened.

local PROPAGATE_MAX = 200 -- edges that a step brings in line with their parents' new states
-- The function that updates jobs whose parents finished or came back; false if none did. Not called by its name, so
-- that a script that ends no job does not include that part and its keys.
hf.propagates = false

-- Returns the packed records that were written, by id.
function hf.close()
    if hf.propagates then hf.propagates(PROPAGATE_MAX) end
    hf.refill_touched()
    hf.flush()
    if next(hf.ended_of) or next(hf.begun_of) then hf.save_busy() end
    if next(hf.key_changes) then hf.save_keys() end
    local packed = hf.save_rows()
    hf.save_tick()
    hf.emit_hints()
    return packed
end

-- == part features: feature flags: which of the rarely used features this store uses.
-- lazy: built when a script first uses one of its names.

function hf.count_of(kind)
    if kind == 'm' then return call('ZCARD', REMEMBERED) end
    if kind == 'e' then return call('ZCARD', EDGES) end
    if kind == 's' then return call('ZCARD', STEPS) end
    local key = kind == 'p' and PAUSES or kind == 'o' and OVERRIDES or kind == 't' and TASKS or kind == 'f' and FLOWS
        or kind == 'g' and GROUP_FLOWS or kind == 'r' and CHANGES or LETTERS
    return call('HLEN', key)
end

-- Call it in the step that stores one. The flag stays set when the last one is gone, except for r and m.
function hf.use(kind)
    hf.any_memo[kind] = true
    if not (meta.used and string.find(meta.used, kind, 1, true)) then
        meta.used = (meta.used or '') .. kind
        call('HSET', META, 'used', meta.used)
    end
end

function hf.no_longer_use(kind)
    hf.any_memo[kind] = false
    meta.used = string.gsub(meta.used, kind, '')
    call('HSET', META, 'used', meta.used)
end

-- == part names: queue, group, task and key as parts of index members, encoded so that no name can reach into its
-- neighbour's range. A part ends with a zero byte; a zero or one byte inside a name is escaped in a way that keeps the
-- order of names.

hf.escaped, hf.place_memo, hf.queue_at = {}, {}, {}

function hf.escape(name)
    local safe = hf.escaped[name]
    if not safe then
        safe = name
        if string.find(name, '[%z\1]') then safe = string.gsub(name, '[%z\1]', { ['\0'] = '\1\1', ['\1'] = '\1\2' }) end
        safe = safe .. '\0'
        hf.escaped[name] = safe
    end
    return safe
end

-- A group's place: the prefix of all its members in waiting, scheduled, play and staged. In apart, a task's place.
function hf.place_of(queue, group)
    local of_queue = hf.place_memo[queue]
    if not of_queue then
        of_queue = {}
        hf.place_memo[queue] = of_queue
    end
    local place = of_queue[group]
    if not place then
        place = hf.escape(queue) .. (group and hf.escape(group) or '\1\0')
        of_queue[group] = place
        hf.queue_at[place] = queue
    end
    return place
end

-- The logical job: (queue, task, key), or the id if there is no key.
function hf.logical_of(row)
    if row[KEY] then return KEY_NAME(hf.escape(row[QUEUE]), hf.escape(row[TASK]), row[KEY]) end
    return 'i' .. row[ID]
end

-- == part members: decode and compare names in index members, and build the fields of pauses, overrides and rates.
-- lazy: built when a script first uses one of its names.

-- The name that an escaped part, without its zero byte, stands for.
function hf.plain(part) return (string.gsub(part, '\1[\1\2]', { ['\1\1'] = '\0', ['\1\2'] = '\1' })) end

-- Whether hf.escape would change any of these names.
function hf.any_odd(names)
    local text = concat(names)
    -- byte by byte, in plain: a search for a set of bytes takes fifty times as long
    return find(text, '\0', 1, true) or find(text, '\1', 1, true)
end

-- The place that a member of an index by queue and group, or queue and task, begins with; nil if it is not ours.
function hf.place_in(member)
    local queue_end = string.find(member, '\0', 1, true)
    local ends = queue_end and string.find(member, '\0', queue_end + 1, true)
    return ends and sub(member, 1, ends)
end

-- Whether `one` sorts before `two` in an index. Indexes compare bytes; Lua's own < follows the server's locale.
function hf.precedes(one, two)
    for i = 1, math.min(#one, #two) do
        local a, b = byte(one, i), byte(two, i)
        if a ~= b then return a < b end
    end
    return #one < #two
end

-- The field of a pause, an override or a rate's state: of a queue (q), a group (g) or a task (t).
function hf.scope_of(kind, queue, name)
    return kind .. (kind == 't' and name or kind == 'q' and queue or hf.place_of(queue, name))
end

-- == part turns: the one growing counter behind turns and fences, and the number of the latest job. The counter is
-- never below the clock in microseconds, so it grows even if the store is rolled back to an older copy. Takes the tick
-- and seq that opening read; save_tick writes them once, at the end.

local COUNTED_MAX = 9007199254740992 -- 2^53: above it, a number plus 1 may be the same number
hf.tick, hf.seq = tonumber(meta.tick) or 0, tonumber(meta.seq)
if not (hf.tick < COUNTED_MAX) then hf.tick = 0 end -- somebody else wrote it: the clock says a better one
if not (hf.seq and hf.seq >= 0 and hf.seq < COUNTED_MAX) then hf.seq = hf.latest_seq() end
hf.first_tick, hf.first_seq = hf.tick, hf.seq
local micros = math.floor(now * 1000000)

function hf.next_tick()
    NEXT_TICK(hf.tick)
    return hf.tick
end

function hf.save_tick()
    if hf.tick ~= hf.first_tick or hf.seq ~= hf.first_seq then
        call('HSET', META, 'tick', format('%.0f', hf.tick), 'seq', format('%.0f', hf.seq))
    end
end

-- == part hints: emit a short wake-up hint that names the queues which may have work.

local HINTS_KEPT = 64

function hf.emit_hints()
    if next(hf.postponed) then -- what is now due before all others may be sooner than sleepers reckon with
        local first = call('ZRANGE', DUE, 0, 0)[1]
        if first and hf.postponed[first] then hf.to_wake[hf.postponed[first]] = true end
    end
    local hint, n = {}, 0
    for queue in pairs(hf.to_wake) do
        hint[n + 1], hint[n + 2] = 'q', queue
        n = n + 2
    end
    if n > 0 then -- a hint that is refused is no reason to fail what was done
        EMIT_HINT(unpack(hint, 1, math.min(n, ARGUMENTS_MAX)))
    end
end

-- == part counts: count jobs by queue and state from the indexes, jumping from queue to queue. Never writes. Members
-- that are not ours are skipped.
-- lazy: built when a script first uses one of its names.

local QUEUES_SEEN_MAX = 20000

-- Calls each(prefix, queue) for every queue that has members with the prefix `before` in this index.
function hf.each_queue(key, before, each)
    local from = '[' .. before
    for _ = 1, QUEUES_SEEN_MAX do
        local first = call('ZRANGEBYLEX', key, from, '(' .. before .. '\255', 'LIMIT', 0, 1)[1]
        if not first then return end
        local ends = string.find(first, '\0', #before + 1, true)
        if ends then
            local prefix = sub(first, 1, ends)
            each(prefix, hf.plain(sub(prefix, #before + 1, -2)))
            from = '[' .. sub(prefix, 1, -2) .. '\1'
        else
            from = '(' .. first -- nothing of ours
        end
    end
end

function hf.counted()
    local counts = {}
    local function add(queue, state, number)
        counts[queue] = counts[queue] or {}
        counts[queue][state] = (counts[queue][state] or 0) + number
    end
    local function of_index(key, before, state)
        hf.each_queue(key, before, function(prefix, queue)
            add(queue, state, call('ZLEXCOUNT', key, '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1'))
        end)
    end
    of_index(READY, '', 'r')
    of_index(APART, '', 'r')
    of_index(WAITING, '', 'w')
    of_index(SCHEDULED, '', 's')
    for _, state in ipairs({ 'o', 'c', 'd' }) do of_index(FINISHED, state, state) end
    hf.each_running(function(queue) add(queue, 'x', 1) end)
    return counts
end

-- Calls each(queue, id) for every running job; there are at most as many as all workers have slots.
function hf.each_running(each)
    for _, member in ipairs(call('ZRANGE', RUNNING, 0, -1)) do
        local seq_end = (string.find(member, '\0', 1, true) or #member) + 16
        local ends = string.find(member, '\0', seq_end + 1, true)
        if ends then each(hf.plain(sub(member, seq_end + 1, ends - 1)), sub(member, ends + 1)) end
    end
end
