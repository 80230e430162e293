-- read: queries that change nothing.

-- == script get: whole jobs by id.
-- args: now, ids
-- Returns their pieces, without ids that do not exist. Never writes; a script sees one instant.

return hf.pieces_of(args.ids)

-- == script dump: rules, workers and whatever else is small, at one instant; with all jobs, letters and rate states of
-- groups if these are few.
-- args: now, limit, bytes
-- `limit`: how many of each are few; `bytes`: how many bytes of jobs, and of letters, are few.
-- Returns the small hashes as they are stored; and, if they are few, jobs and letters as dump_page does, and the rate
-- states. Whatever is left out is read page by page. Never writes.

local limit, bytes, small = args.limit, args.bytes, {}
for i, key in ipairs({ WORKERS, CALLS, PORTRAITS, RULES, TASKS, OVERRIDES, FLOWS, ENTRIES, PAUSES, CHANGES }) do
    small[i] = call('HGETALL', key)
end
small[#small + 1] = call('ZRANGE', EDGES, 0, -1)
small[#small + 1] = call('HGETALL', DEPENDENTS)
local late = call('ZRANGE', PROPAGATING, 0, -1)
for _, member in ipairs(call('ZRANGE', OUTBOX, 0, -1)) do
    if find(member, '^[nw]') then late[#late + 1] = sub(member, 2) end
end
small[#small + 1] = late
small[#small + 1] = hf.stored_steps(call('ZRANGE', STEPS, 0, -1))
for _, key in ipairs({ JOBS, LETTERS, GROUP_FLOWS }) do
    if call('HLEN', key) > limit then return { small } end
end
local jobs, jobs_left = hf.dumped(call('HKEYS', JOBS), hf.hashes_of_jobs(), bytes)
local letters, letters_left = hf.dumped(call('HKEYS', LETTERS), { LETTERS }, bytes)
if #jobs_left + #letters_left > 0 then return { small } end
return { small, jobs, letters, call('HGETALL', GROUP_FLOWS) }

-- == script dump_page: a page of all jobs, or all letters.
-- args: now, what, cursor, limit, bytes
-- raw: names...
-- `what` is jobs or letters; `cursor`, where to continue; `limit`: how many; `bytes`: the name that exceeds them is the
-- last; names, if there are any, are read instead.
-- Returns the next cursor, '0' at the end; of each job its name, record, body, value, errors, progress, log lines and
-- marks, of each letter its name and the letter; and the names not read. Never writes.
-- Concurrency: a page is one instant, so the pieces of one job belong together; two pages are two instants.

local of_jobs, cursor, limit, bytes, names = args.what == 'jobs', args.cursor, args.limit, args.bytes, {}
for i = PLACE.names, #ARGV do names[#names + 1] = ARGV[i] end
if #names == 0 then
    local found = call('HSCAN', of_jobs and JOBS or LETTERS, cursor, 'COUNT', limit)
    cursor = found[SCAN_CURSOR]
    for i = 1, #found[SCAN_ENTRIES], 2 do names[#names + 1] = found[SCAN_ENTRIES][i] end
end
local lines, left = hf.dumped(names, of_jobs and hf.hashes_of_jobs() or { LETTERS }, bytes)
return { cursor, lines, left }

-- == script count: jobs by queue and state, at one instant.
-- args: now
-- Returns packed {queue → {state → number}}. Never writes.

return { cpack(hf.counted()) }

-- == script ended: which of these jobs are finished, and which ids are unknown.
-- args: now, ids
-- Returns the pieces of the finished ones, then the unknown ids. Never writes.

local ids, finished, unknown = args.ids, {}, {}
for from = 1, #ids, ARGUMENTS_MAX do
    local upto = math.min(#ids, from + ARGUMENTS_MAX - 1)
    local found = call('HMGET', JOBS, unpack(ids, from, upto))
    for i = from, upto do
        local packed = found[i - from + 1]
        if not packed then
            unknown[#unknown + 1] = ids[i]
        else
            local fields = { pcall(cmsgpack.unpack_limit, packed, FIELD.state, RECORD_HEAD_BYTES) }
            local state = fields[FIELD.state + 2] -- behind the success and the next offset
            if state == 'o' or state == 'c' or state == 'd' then finished[#finished + 1] = ids[i] end
        end
    end
end
return { hf.pieces_of(finished), unknown }

-- == script groups: groups with unfinished jobs, an override or a pause, by queue and name.
-- args: now, queue, after, limit, name, noted
-- `queue` or nil; `after`, the place to continue after; one group's name, or nil; `noted`: the next places of groups
-- with an override or a pause, more of them than requested. Never writes.
-- Returns packed lines, each a map: place, limit, override, order, pause, number of jobs in each unfinished state,
-- head, rate, rate_override, flow; and 1 if there are more.

-- Bounds on records read in all, of one group's scheduled jobs, and of its jobs in play. Beyond them, the head is the
-- first of those read, and the running count is what is in play and neither ready nor scheduled.
local SEEN_MAX_IN_ALL, SCHEDULED_SEEN_MAX, PLAY_SEEN_MAX = 5000, 1000, 64
local unseen = SEEN_MAX_IN_ALL
local within, after, most, name = args.queue, args.after, args.limit, args.name
local places, known = {}, {}
local low, high = '-', '+'
if within then low, high = '[' .. hf.escape(within), '(' .. sub(hf.escape(within), 1, -2) .. '\1' end

local function note(place)
    local is_within = not within or sub(place, 1, #hf.escape(within)) == hf.escape(within)
    if not known[place] and hf.precedes(after, place) and is_within and sub(place, -3) ~= '\0\1\0' then
        known[place] = true
        places[#places + 1] = place
        hf.queue_at[place] = hf.plain(sub(place, 1, string.find(place, '\0', 1, true) - 1))
    end
end

local function places_in(key)
    local from, found = after ~= '' and '(' .. after .. '\255' or low, 0
    while found < most + 1 do
        local first = call('ZRANGEBYLEX', key, from, high, 'LIMIT', 0, 1)[1]
        if not first then return end
        local place = hf.place_in(first)
        if place then note(place) end
        found = found + 1
        from = place and '(' .. place .. '\255' or '(' .. first
    end
end

if name then
    places[1] = hf.place_of(within, name)
else
    for _, key in ipairs({ WAITING, PLAY, SCHEDULED }) do places_in(key) end
    for _, place in ipairs(args.noted) do note(place) end
    table.sort(places, hf.precedes)
end

local function rows_of(key, place, tail, limit)
    limit = math.max(1, math.min(limit, unseen))
    local found = call('ZRANGEBYLEX', key, '[' .. place, '(' .. place .. '\255', 'LIMIT', 0, limit)
    unseen = unseen - #found
    local ids, rows = tail == 'waiting' and hf.waiting_ids(found, #place) or hf.ids_after(found, #place + tail), {}
    hf.load_rows(ids)
    for _, id in ipairs(ids) do
        if hf.cache[id] then rows[#rows + 1] = hf.cache[id] end
    end
    return rows
end

local function first_of(rows, state, held)
    local first
    for _, row in ipairs(rows) do
        if row[STATE] == state and (held == nil or row[HELD] == held) then
            local sooner = first and hf.before(row, first)
            if not first or sooner then first = row end
        end
    end
    return first
end

local lines = {}
for i = 1, math.min(most, #places) do
    local place = places[i]
    local playing = rows_of(PLAY, place, 0, PLAY_SEEN_MAX)
    local numbers = { r = 0, x = 0 }
    for _, row in ipairs(playing) do numbers[row[STATE]] = (numbers[row[STATE]] or 0) + 1 end
    local lowest, highest = '[' .. place, '(' .. place .. '\255'
    local in_play = call('ZLEXCOUNT', PLAY, lowest, highest)
    if in_play > #playing then
        numbers.r = call('ZLEXCOUNT', STAGED, lowest, highest)
        numbers.x = in_play - numbers.r - (numbers.d or 0)
            - call('ZLEXCOUNT', SCHEDULED, lowest, '(' .. place .. '1')
    end
    local stopper = first_of(playing, 'd')
    local head = first_of(playing, 'x') or first_of(playing, 'r') or first_of(playing, 's') or stopper
    local waiting = call('ZLEXCOUNT', WAITING, lowest, highest)
    if not head and waiting > 0 then head = rows_of(WAITING, place, 'waiting', 1)[1] end
    local scheduled = call('ZLEXCOUNT', SCHEDULED, lowest, highest)
    if not head and scheduled > 0 then head = first_of(rows_of(SCHEDULED, place, 17, SCHEDULED_SEEN_MAX), 's') end
    local packed, pause = call('HGET', OVERRIDES, 'g' .. place), call('HGET', PAUSES, 'g' .. place)
    local said = packed and hf.sound_override(hf.read(packed)) or { false, false }
    local limit, rate, strict = hf.group_of(place)
    lines[i] = {
        place = place, limit = limit, override = said[OVERRIDE_LIMIT] or false,
        order = strict and 'strict' or 'relaxed', pause = pause and (hf.read(pause) or {}) or false,
        scheduled = scheduled, waiting = waiting, ready = numbers.r, running = numbers.x,
        head = head and head[ID] or false, stopped_by = stopper and stopper[ID] or false, rate = rate or false,
        rate_override = said[OVERRIDE_RATE] or false, weight = said[OVERRIDE_WEIGHT] or 1,
        flow = hf.flow_of('g' .. place),
    }
end
return { cpack(lines), #places > most and 1 or 0 }

-- == script queues: everything a list of queues shows, at one instant.
-- args: now
-- Returns packed counts, packed {queue → earliest due time of a ready job}, then rules, pauses, overrides and rate
-- states as they are stored. Never writes.
-- The earliest due time is exact up to READY_SEEN_MAX ready jobs; beyond, it is that of the jobs claimed next.

local READY_SEEN_MAX, NEXT_SEEN = 10000, 500
local left, oldest = READY_SEEN_MAX, {}

-- Reads the jobs of one lane; `bytes` is the length of its members' prefix, before the rank.
local function look(queue, key, low, high, bytes)
    local number = call('ZLEXCOUNT', key, low, high)
    local seen = number <= left and number or NEXT_SEEN
    left = left - math.min(left, seen)
    for _, member in ipairs(call('ZRANGEBYLEX', key, low, high, 'LIMIT', 0, seen)) do
        local due = #member > bytes + 28 and struct.unpack('>d', member, bytes + 21)
        if due and (not oldest[queue] or due < oldest[queue]) then oldest[queue] = due end
    end
end

hf.each_queue(READY, '', function(prefix, queue)
    for lane = 0, 2 do look(queue, READY, '[' .. prefix .. lane, '(' .. prefix .. (lane + 1), #prefix + 1) end
end)
hf.each_queue(APART, '', function(prefix, queue)
    for _, one in ipairs(hf.tasks_apart(queue)) do
        look(queue, APART, '[' .. one.place, '(' .. one.place .. '\255', #one.place)
    end
end)
return { cpack(hf.counted()), cpack(oldest), call('HGETALL', RULES), call('HGETALL', PAUSES),
    call('HGETALL', OVERRIDES), call('HGETALL', FLOWS) }

-- == script tasks: rules and overrides of tasks, their rate states, and how many jobs of each run, at one instant.
-- args: now
-- Returns rules, overrides, rate states and numbers as they are stored. Never writes.

return { call('HGETALL', TASKS), call('HGETALL', OVERRIDES), call('HGETALL', FLOWS), call('HGETALL', BUSY) }

-- == script workers: every worker's row and how many leases it holds, at one instant.
-- args: now
-- Returns the time; then id, packed row, number and status of each worker. Never writes.

local lines = {}
local rows = call('HGETALL', WORKERS)
for i = 1, #rows, 2 do
    local prefix = hf.escape(rows[i])
    lines[#lines + 1], lines[#lines + 2] = rows[i], rows[i + 1]
    lines[#lines + 1] = call('ZLEXCOUNT', RUNNING, '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1')
    lines[#lines + 1] = call('HGET', PORTRAITS, rows[i])
end
return { cpack(now), lines }

-- == part job_pieces: whole jobs for the caller: id, record, body, value, errors, progress, as flat lists of packed
-- pieces. Jobs whose record cannot be read are included.

function hf.pieces_of(ids)
    local records, n = {}, #ids
    for from = 1, n, ARGUMENTS_MAX do
        local upto = math.min(n, from + ARGUMENTS_MAX - 1)
        local pieces = {}
        for i, key in ipairs({ JOBS, BODIES, VALUES, ERRORS, PROGRESS }) do
            pieces[i] = call('HMGET', key, unpack(ids, from, upto))
        end
        for i = 1, upto - from + 1 do
            if pieces[1][i] then -- it has a record
                records[#records + 1] = ids[from + i - 1]
                for j = 1, 5 do records[#records + 1] = pieces[j][i] end
            end
        end
    end
    return records
end

-- == part dumping: what these hashes hold under these names, as far as the bytes suffice; then the names left over.

function hf.hashes_of_jobs() return { JOBS, BODIES, VALUES, ERRORS, PROGRESS, LOGS, MARKS } end

function hf.dumped(names, hashes, bytes)
    local lines, left = {}, {}
    for _, name in ipairs(names) do
        local first = bytes > 0 and call('HGET', hashes[1], name)
        if bytes <= 0 then
            left[#left + 1] = name
        elseif first then
            lines[#lines + 1], lines[#lines + 2] = name, first
            bytes = bytes - #first
            for i = 2, #hashes do
                local piece = call('HGET', hashes[i], name)
                lines[#lines + 1] = piece
                bytes = bytes - (piece and #piece or 0)
            end
        end
    end
    return lines, left
end
