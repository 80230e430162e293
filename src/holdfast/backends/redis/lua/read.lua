-- read: queries that change nothing.

-- == script get: whole jobs by id.
-- args: now, ids
-- Returns their pieces, without ids that do not exist. Never writes; a script sees one instant.

return hf.pieces_of(args.ids)

-- == script scan: jobs that meet the conditions, newest first: of the given ids, or of all jobs below a seq.
-- args: now, ids, below, page, wanted, bytes, light, fields, conditions
-- `ids` or nil; `below`, the seq to stay below, or nil; `page`: how many to check; `wanted`: how many to return at
-- most; `bytes`: the job that exceeds them is the last; `light`: without bodies, values and errors; `fields`: how many
-- of a record the conditions need; the conditions are those of part conditions. Returns the seq to continue below ('' at
-- the end), how many were checked, and the jobs' pieces. Never writes.

local wanted, bytes, met, last = args.wanted, args.bytes, {}, ''
local ids, at_end = hf.scanned_ids(args.ids, args.below, args.page)
local checked = hf.each_met(ids, args.fields, args.conditions, function(id)
    met[#met + 1] = id
    if not args.light then
        for _, hash in ipairs({ BODIES, VALUES, ERRORS }) do bytes = bytes - call('HSTRLEN', hash, id) end
    end
    return #met == wanted or bytes <= 0
end)
if checked > 0 and not (at_end and checked == #ids) then last = hf.seq_text(ids[checked]) end
return { last, checked, args.light and hf.light_pieces_of(met) or hf.pieces_of(met) }

-- == script tally: how many jobs meet the conditions, by one field of their records.
-- args: now, ids, below, page, by, fields, conditions
-- As scan; `by`: the position of the field, or 0. Returns the seq to continue below ('' at the end), how many were
-- checked, and packed {name → number}. Never writes.

local counts, by, last = {}, args.by, ''
local ids, at_end = hf.scanned_ids(args.ids, args.below, args.page)
local checked = hf.each_met(ids, args.fields, args.conditions, function(_, row)
    local name = by > 0 and row and row[by + HEAD_OFFSET] or ''
    counts[name] = (counts[name] or 0) + 1
end)
if checked > 0 and not at_end then last = hf.seq_text(ids[checked]) end
return { last, checked, cpack(counts) }

-- == part conditions: which of these jobs meet the conditions of a query, told from the first fields of their records.
-- The conditions are states, queue, task, group, key, worker, prefix, ends, more, failed; each of `more` is {position,
-- negated, states, is_text, tests}: one of the tests holds or, negated, none. A test of a text has its parts, with anything
-- between them; a test of a number has an operator and a number. `failed`: a failure is recorded. Concurrency: a script
-- runs alone.

local HEAD_OFFSET = 2 -- before the fields: whether they could be read, and where the rest begins

function hf.scanned_ids(ids, below, page)
    if ids then return ids, true end
    ids = call('ZREVRANGEBYSCORE', SEQS, below and format('(%.0f', below) or '+inf', '-inf', 'LIMIT', 0, page)
    return ids, #ids < page
end

function hf.seq_text(id) return format('%.0f', tonumber(call('ZSCORE', SEQS, id) or 0)) end

local function fits(parts, text)
    local n, first = #parts, unpack(parts, 1, 1)
    if n == 1 then return text == first end
    local final = parts[n]
    if #text < #first + #final or sub(text, 1, #first) ~= first or sub(text, #text - #final + 1) ~= final then
        return false
    end
    local from, upto = #first + 1, #text - #final
    for i = 2, n - 1 do
        local _, stop = string.find(text, parts[i], from, true)
        if not stop and parts[i] ~= '' or (stop or 0) > upto then return false end
        from = (stop or from - 1) + 1
    end
    return true
end

local function compares(op, found, number)
    if op == '<' then return found < number end
    if op == '<=' then return found <= number end
    if op == '>' then return found > number end
    if op == '>=' then return found >= number end
    return found == number
end

local function holds(row, condition)
    local position, negated, states, is_text, tests = unpack(condition, 1, 5)
    local found, any = row[position + HEAD_OFFSET], false
    if states and not string.find(states, row[FIELD.state + HEAD_OFFSET], 1, true) then found = false end
    for i = 1, found and #tests or 0 do
        local test = tests[i]
        if is_text then any = any or fits(test, found) else any = any or compares(test[COMPARED_OP], found, test[COMPARED_NUMBER]) end
    end
    return any ~= negated
end

local function has_end(ends, id)
    for _, one in ipairs(ends) do
        if sub(id, 1, #one) == one or sub(id, -#one) == one then return true end
    end
end

local function meets(row, conditions)
    local states, queue, task, group, key, worker, _, _, more = unpack(conditions, 1, 9) -- they may be nil
    if states and not string.find(states, row[FIELD.state + HEAD_OFFSET], 1, true) then return false end
    if queue and row[FIELD.queue + HEAD_OFFSET] ~= queue or task and row[FIELD.task + HEAD_OFFSET] ~= task
        or group and row[FIELD.group + HEAD_OFFSET] ~= group or key and row[FIELD.key + HEAD_OFFSET] ~= key
        or worker and row[FIELD.worker + HEAD_OFFSET] ~= worker then
        return false
    end
    for i = 1, #more do
        if not holds(row, more[i]) then return false end
    end
    return true
end

-- Those whose ids begin with the prefix, or begin or end with one of the ends; and where each of them was in the list.
local function by_id(ids, prefix, ends)
    if not prefix and not ends then return ids end
    local kept, places = {}, {}
    for i, id in ipairs(ids) do
        if (not prefix or sub(id, 1, #prefix) == prefix) and (not ends or has_end(ends, id)) then
            kept[#kept + 1], places[#places + 1] = id, i
        end
    end
    return kept, places
end

-- Calls each(id, row) for those that meet the conditions, until it returns true. Returns how many were checked. A record
-- that cannot be read meets no condition; without any it is passed, with row nil.
function hf.each_met(ids, fields, conditions, each)
    local states, queue, task, group, key, worker, prefix, ends, more, failed = unpack(conditions, 1, 10)
    local asked = states or queue or task or group or key or worker or #more > 0
    local kept, places = by_id(ids, prefix, ends)
    for from = 1, #kept, ARGUMENTS_MAX do
        local upto = math.min(#kept, from + ARGUMENTS_MAX - 1)
        local found = call('HMGET', JOBS, unpack(kept, from, upto))
        for i = from, upto do
            local id, packed = kept[i], found[i - from + 1]
            if packed then
                local row = { pcall(cmsgpack.unpack_limit, packed, fields, RECORD_HEAD_BYTES) }
                local is_met = not asked
                if row[HEAD_READ] and asked then
                    local could, answer = pcall(meets, row, conditions)
                    is_met = could and answer
                end
                if is_met and failed then is_met = call('HEXISTS', ERRORS, id) == 1 end
                if is_met and each(id, row[HEAD_READ] and row) then return places and places[i] or i end
            end
        end
    end
    return #ids
end

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
    local ids, rows = hf.ids_after(found, #place + tail), {}
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
            local sooner = first and (row[PRIORITY] > first[PRIORITY]
                or (row[PRIORITY] == first[PRIORITY] and row[SEQ] < first[SEQ]))
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
        numbers.x = in_play - numbers.r - call('ZLEXCOUNT', SCHEDULED, lowest, '(' .. place .. '1')
    end
    local head = first_of(playing, 'x') or first_of(playing, 'r') or first_of(playing, 's')
    local waiting = call('ZLEXCOUNT', WAITING, lowest, highest)
    if not head and waiting > 0 then head = rows_of(WAITING, place, 13, 1)[1] end
    local scheduled = call('ZLEXCOUNT', SCHEDULED, lowest, highest)
    if not head and scheduled > 0 then head = first_of(rows_of(SCHEDULED, place, 17, SCHEDULED_SEEN_MAX), 's') end
    local packed, pause = call('HGET', OVERRIDES, 'g' .. place), call('HGET', PAUSES, 'g' .. place)
    local said = packed and hf.sound_override(hf.read(packed)) or { false, false }
    local limit, rate, strict = hf.group_of(place)
    lines[i] = {
        place = place, limit = limit, override = said[OVERRIDE_LIMIT] or false,
        order = strict and 'strict' or 'relaxed', pause = pause and (hf.read(pause) or {}) or false,
        scheduled = scheduled, waiting = waiting, ready = numbers.r, running = numbers.x,
        head = head and head[ID] or false, rate = rate or false,
        rate_override = said[OVERRIDE_RATE] or false, flow = hf.flow_of('g' .. place),
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

-- The same without body, value, errors and progress.
function hf.light_pieces_of(ids)
    local records = {}
    for from = 1, #ids, ARGUMENTS_MAX do
        local upto = math.min(#ids, from + ARGUMENTS_MAX - 1)
        local found = call('HMGET', JOBS, unpack(ids, from, upto))
        for i = from, upto do
            if found[i - from + 1] then
                records[#records + 1], records[#records + 2] = ids[i], found[i - from + 1]
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
