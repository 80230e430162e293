-- flaws: find entries that cannot be read, and quarantine them.

-- == script flaws: one page of inconsistencies and unreadable entries: records checked against every index they should
-- be in, or the members of an index against their records.
-- args: now, what, cursor, page
-- `what` is a key's name, `cursor` one of the server's scan, `page` how many to check.
-- Returns the next cursor ('0' at the end), then flat lines: place, id, field, what is wrong. Never writes.
-- Concurrency: a page is one instant, so a job that moves is never reported as a flaw.

local SMALL_BODY = 65536 -- a longer body is not read to check its lengths
local what, cursor, page = args.what, args.cursor, args.page
local INDEXES = { ready = READY, apart = APART, staged = STAGED, waiting = WAITING, scheduled = SCHEDULED, due = DUE,
    ordered = ORDERED,
    running = RUNNING, play = PLAY, finished = FINISHED, prunable = PRUNABLE, expiring = EXPIRING, seqs = SEQS,
    kept = KEPT }
local note = hf.note_flaw

-- Everything a job should be listed in: index → member → score; nil if its record has values of the wrong type.
local function listed(row)
    hf.pending = {}
    local is_sound = pcall(function()
        hf.list(row, true)
        local place = hf.in_play(row)
        if place then hf.put(PLAY, place .. row[ID], '0') end
        hf.put(SEQS, row[ID], format('%.0f', row[SEQ]))
    end)
    return is_sound and hf.pending or nil
end

-- The id that a member of an index ends with.
local function id_of(name, member)
    if name == 'prunable' or name == 'expiring' or name == 'seqs' then return member end
    if name == 'due' then return sub(member, 9) end
    local names = (name == 'ready' or name == 'running' or name == 'finished' or name == 'kept') and 1 or 2
    local tail = ({ ready = 29, apart = 28, staged = 8, waiting = 13, scheduled = 17, ordered = 28, running = 16,
        play = 0, finished = 8, kept = 16 })[name]
    local at = name == 'finished' and 1 or 0
    for _ = 1, names do at = string.find(member, '\0', at + 1, true) or #member end
    if name == 'running' then return sub(member, (string.find(member, '\0', at + tail + 1, true) or #member) + 1) end
    if name == 'waiting' then return WAITING_ID(member, at) end
    return sub(member, at + tail + 1)
end

-- Whether a value has no more levels than ours have: a decoder outside refuses one that is nested too deep.
local function is_shallow(value, levels)
    if type(value) ~= 'table' then return true end
    for _, inner in pairs(value) do
        if levels == 0 or not is_shallow(inner, levels - 1) then return false end
    end
    return true
end

local function check_pieces(row)
    local id = row[ID]
    local length = call('HSTRLEN', BODIES, id)
    if length < 9 then
        note('bodies', id, 'args', length == 0 and 'its arguments are missing' or 'its arguments cannot be read')
    elseif length <= SMALL_BODY then
        local args_length, options_length = struct.unpack('>I4I4', call('HGET', BODIES, id))
        if 8 + args_length + options_length >= length then note('bodies', id, 'args', 'it is shorter than it says') end
    end
    for name, key in pairs({ errors = ERRORS, progress = PROGRESS, logs = LOGS, marks = MARKS }) do
        local packed = call('HGET', key, id)
        local value = packed and hf.read(packed)
        if packed and not (value and is_shallow(value, 8)) then note(name, id, name, 'it cannot be read') end
    end
    if row[VALUE] == 1 and call('HEXISTS', VALUES, id) == 0 then note('values', id, 'value', 'its value is missing') end
    if row[KEY] and hf.holds(row) and call('HGET', KEYED, hf.key_name(row)) ~= id then
        note('keyed', id, 'key', 'it holds its key and is not listed as its holder')
    end
end

local function check_job(id, packed)
    hf.open_readable({ packed }, { id }, 1, 1)
    local row = hf.cache[id]
    local members = row and listed(row)
    if not members or hf.cannot_be_shown(row) then note('jobs', id, 'record', 'its record cannot be read') end
    if not members then return end
    for name, key in pairs(INDEXES) do
        for member, score in pairs(members[key] or {}) do
            if name ~= 'kept' and score then
                local there = call('ZSCORE', key, member)
                if not there then
                    note(name, id, '', 'the index lacks this job, which is in state ' .. row[STATE])
                elseif tonumber(there) ~= tonumber(score) then
                    note(name, id, '', 'the index has this job at another place than its record says')
                end
            end
        end
    end
    check_pieces(row)
end

-- Checks a letter, its index entries and its job.
local function check_letter(logical, packed)
    local letter = hf.sound_letter(hf.read(packed))
    if not letter then
        note('letters', byte(logical) == 105 and sub(logical, 2) or logical, '', 'it cannot be read and is left out')
        return
    end
    local function check(name, key, member)
        if not call('ZSCORE', key, member) then note(name, letter.id, '', 'the index lacks this dead letter') end
    end
    check('holders', HOLDERS, hf.escape(letter.id) .. logical)
    check('failed', FAILED, logical)
    check('dead', DEAD, hf.dead_member(logical, letter))
    if letter.revive_at then check('revivals', REVIVALS, logical) end
    if not hf.row_of(letter.id) then note('letters', letter.id, 'id', 'its job is gone or cannot be read') end
end

-- Reports an entry that should point to a letter or to the holder of a key, and does not.
local function check_entry(member, value)
    if what == 'keyed' then
        local row = hf.row_of(value)
        if not (row and row[KEY] and hf.holds(row) and hf.key_name(row) == member) then
            note('keyed', value, 'key', 'it is listed as the holder of a key that it does not hold')
        end
    else
        local logical, ends = member, string.find(member, '\0', 1, true) or 0
        if what == 'holders' then logical = sub(member, ends + 1) end
        if what == 'dead' then logical = sub(member, ends + 17) end
        if call('HEXISTS', LETTERS, logical) == 0 then
            note(what, logical, '', 'the index has a dead letter that is not there')
        end
    end
end

local ENTRIES_OF = { keyed = KEYED, holders = HOLDERS, failed = FAILED, revivals = REVIVALS, dead = DEAD }
local found
if ENTRIES_OF[what] then
    found = call(what == 'keyed' and 'HSCAN' or 'ZSCAN', ENTRIES_OF[what], cursor, 'COUNT', page)
    for i = 1, #found[SCAN_ENTRIES], 2 do check_entry(found[SCAN_ENTRIES][i], found[SCAN_ENTRIES][i + 1]) end
elseif what == 'letters' then
    found = call('HSCAN', LETTERS, cursor, 'COUNT', page)
    for i = 1, #found[SCAN_ENTRIES], 2 do check_letter(found[SCAN_ENTRIES][i], found[SCAN_ENTRIES][i + 1]) end
elseif what == 'jobs' then
    found = call('HSCAN', JOBS, cursor, 'COUNT', page)
    for i = 1, #found[SCAN_ENTRIES], 2 do check_job(found[SCAN_ENTRIES][i], found[SCAN_ENTRIES][i + 1]) end
elseif what == 'quarantine' then
    found = call('HSCAN', QUARANTINE, cursor, 'COUNT', page)
    for i = 1, #found[SCAN_ENTRIES], 2 do
        local name, member = string.match(found[SCAN_ENTRIES][i], '^(%l+)%z(.*)$')
        local said = hf.read(found[SCAN_ENTRIES][i + 1]) or {}
        local id = INDEXES[name] and id_of(name, member) or member or found[SCAN_ENTRIES][i]
        note('quarantine', id, '', 'set aside from ' .. (name or 'somewhere') .. ': ' .. tostring(said[ASIDE_WHY]))
    end
elseif not INDEXES[what] then
    found = hf.check_others(what, cursor, page)
else
    local key = INDEXES[what]
    found = call('ZSCAN', key, cursor, 'COUNT', page)
    for i = 1, #found[SCAN_ENTRIES], 2 do
        local member = found[SCAN_ENTRIES][i]
        local id = id_of(what, member)
        local row = hf.row_of(id)
        local members = row and listed(row)
        if not row then
            note(what, id, '', 'the index has an entry that leads to no job that can be read')
        elseif members and what ~= 'kept' and not (members[key] and members[key][member]) then
            note(what, id, '', 'the index has an entry that its job, in state ' .. row[STATE] .. ', does not have')
        end
    end
end
return { found[SCAN_CURSOR], hf.flaw_lines }

-- == part checks: what flaws checks besides jobs and their indexes: counters, rate states, workers, remembered ids,
-- and data left over from removed jobs. Never writes.
-- lazy: built when a script first uses one of its names.

local RUNNING_SEEN_MAX = 20000 -- with more running jobs, the counts per queue and task are not checked
local PIECES_SHARE = 25 -- bodies and values may be long: a page holds this many times fewer of them
hf.flaw_lines = {}

function hf.note_flaw(place, id, field, text)
    local n = #hf.flaw_lines
    for i, word in ipairs({ place, id, field, text }) do hf.flaw_lines[n + i] = word end
end

local function is_utf8(text)
    if not find(text, '[\128-\255]') then return true end
    for _, wrong in ipairs({ '\224[\128-\159]', '\237[\160-\191]', '\240[\128-\143]', '\244[\144-\191]' }) do
        if find(text, wrong) then return false end
    end
    for _, right in ipairs({ '[\194-\223]', '[\224-\239][\128-\191]', '[\240-\244][\128-\191][\128-\191]' }) do
        text = string.gsub(text, right .. '[\128-\191]', 'x')
    end
    return not find(text, '[\128-\255]')
end

-- Whether a record that scripts can work with has values that cannot be shown.
function hf.cannot_be_shown(row)
    for _, at in ipairs({ row[CREATED_AT], row[DUE_AT], row[EXPIRES_AT] or 0, row[STARTED_AT] or 0,
        row[FINISHED_AT] or 0, row[PRUNE_AT] or 0 }) do
        if at < -62135596800 or at > 253402300799 then return true end
    end
    for _, number in ipairs({ row[SEQ], row[PRIORITY], row[ATTEMPTS], row[FAILURES], row[STALLS], row[MAX_STALLS],
        row[FENCE], row[SHARED_STALLS], row[TURN] or 0, row[CLAIM_CALL] or 0 }) do
        if number <= -COUNTED_MAX then return true end
    end
    for _, text in ipairs({ row[ID], row[QUEUE], row[TASK], row[GROUP] or '', row[KEY] or '', row[TOKEN] or '',
        row[WORKER] or '', row[REASON] or '' }) do
        if not is_utf8(text) then return true end
    end
    return false
end

-- Calls each(name, value) for one page of a hash or an index. Returns the scan's reply.
local function each_of(command, key, cursor, page, each)
    local found = call(command, key, cursor, 'COUNT', page)
    for i = 1, #found[SCAN_ENTRIES], 2 do each(found[SCAN_ENTRIES][i], found[SCAN_ENTRIES][i + 1]) end
    return found
end

local function check_busy()
    local stored, names = call('HGETALL', BUSY), { q = 'queue', t = 'task' }
    local numbers = call('ZCARD', RUNNING) <= RUNNING_SEEN_MAX and hf.busy_numbers()
    local known = {}
    for i = 1, #stored, 2 do
        local scope, number = stored[i], tonumber(stored[i + 1])
        known[scope] = true
        if not hf.is_count(number) or numbers and number ~= (numbers[scope] or 0) then
            hf.note_flaw('busy', sub(scope, 2), names[sub(scope, 1, 1)] or '', 'it does not say how many jobs run')
        end
    end
    for scope in pairs(numbers or {}) do
        if not known[scope] then
            hf.note_flaw('busy', sub(scope, 2), names[sub(scope, 1, 1)], 'it lacks the number of running jobs')
        end
    end
end

local function check_meta()
    local names = { 'tick', 'seq', 'quiet_until', 'lease_max', 'body_max' }
    for i, text in ipairs(call('HMGET', META, unpack(names))) do
        local number = text and tonumber(text)
        if text and not (number and number >= 0 and number < COUNTED_MAX) then
            hf.note_flaw('meta', names[i], '', 'it is no number that makes sense')
        end
    end
    if hf.latest_seq() > (tonumber(meta.seq) or 0) then
        hf.note_flaw('meta', 'seq', '', 'there are jobs with a higher number')
    end
    for kind, name in pairs({ p = 'pauses', o = 'overrides', t = 'tasks', f = 'flows', g = 'group_flows', d = 'letters',
        r = 'changes', m = 'remembered' }) do
        if hf.count_of(kind) > 0 and not (meta.used and find(meta.used, kind, 1, true)) then
            hf.note_flaw('meta', 'used', '', 'it lacks that there are ' .. name .. ', so nobody looks at them')
        end
    end
end

-- Rate states: each is listed by the time at which it lapses, and by the time at which it wakes its group, if it does.
local function check_flow(scope, packed)
    local flow = hf.sound_flow(hf.read(packed))
    if not flow then return end -- the caller reads it, too
    if not call('ZSCORE', LAPSING, scope) then
        hf.note_flaw('lapsing', sub(scope, 2), '', 'the index lacks this bucket')
    end
    if flow[FLOW_WAKES_AT] and tonumber(call('ZSCORE', WAKING, scope) or nil) ~= flow[FLOW_WAKES_AT] then
        hf.note_flaw('waking', sub(scope, 2), '', 'the index lacks this group, which its bucket should wake')
    end
end

local function check_waking(scope, score)
    local packed = call('HGET', GROUP_FLOWS, scope)
    local flow = packed and hf.sound_flow(hf.read(packed))
    if not (flow and flow[FLOW_WAKES_AT] == tonumber(score)) then
        hf.note_flaw('waking', sub(scope, 2), '', 'the index has a group that no bucket wakes then')
    end
end

local function check_worker(id)
    local worker = hf.worker_row(id)
    if worker and tonumber(call('ZSCORE', DEADLINES, id) or nil) ~= worker[WORKER_DEADLINE] then
        hf.note_flaw('deadlines', id, '', 'the index lacks this worker, or has another deadline')
    end
    if not worker then hf.note_flaw('workers', id, '', 'it cannot be read and is left out') end
end

local function is_there(key, name) return call('HEXISTS', key, name) == 1 end

local function check_owner(name, id)
    if is_there(WORKERS, id) then return true end
    hf.note_flaw(name, id, '', 'its worker is gone')
end

local CHECKS = {
    meta = check_meta,
    busy = check_busy,
    flows = { 'HSCAN', FLOWS, check_flow },
    group_flows = { 'HSCAN', GROUP_FLOWS, check_flow },
    waking = { 'ZSCAN', WAKING, check_waking },
    lapsing = { 'ZSCAN', LAPSING, function(scope)
        if not is_there(FLOWS, scope) and not is_there(GROUP_FLOWS, scope) then
            hf.note_flaw('lapsing', sub(scope, 2), '', 'the index has a bucket that is not there')
        end
    end },
    remembered = { 'ZSCAN', REMEMBERED, function(id, score)
        if tonumber(score) > now and is_there(JOBS, id) then
            hf.note_flaw('remembered', id, '', 'the id is remembered although its job is there')
        end
    end },
    workers = { 'HSCAN', WORKERS, check_worker },
    deadlines = { 'ZSCAN', DEADLINES, function(id) check_owner('deadlines', id) end },
    calls = { 'HSCAN', CALLS, function(id, packed)
        if check_owner('calls', id) and not hf.sound_call(hf.read(packed)) then
            hf.note_flaw('calls', id, '', 'it cannot be read')
        end
    end },
    portraits = { 'HSCAN', PORTRAITS, function(id) check_owner('portraits', id) end },
    commands = { 'HSCAN', COMMANDS, function(id, packed)
        if check_owner('commands', id) and type(hf.read(packed)) ~= 'table' then
            hf.note_flaw('commands', id, '', 'they cannot be read')
        end
    end },
    edges = { 'ZSCAN', EDGES, function(member) hf.check_edge(member) end },
    parents = { 'ZSCAN', PARENTS, function(member) hf.check_parent(member) end },
    dependents = { 'HSCAN', DEPENDENTS, function(id, packed) hf.check_related('dependents', id, packed) end },
    propagating = { 'ZSCAN', PROPAGATING, function(id) hf.check_related('propagating', id) end },
    elsewhere = { 'HSCAN', ELSEWHERE, function(id) hf.check_elsewhere(id) end },
    notes = { 'HSCAN', NOTES, function(id) hf.check_note(id) end },
    outbox = { 'ZSCAN', OUTBOX, function(member) hf.check_post(member) end },
    steps = { 'ZSCAN', STEPS, function(member) hf.check_step(member) end },
    step_values = { 'HSCAN', STEP_VALUES, function(member, packed) hf.check_step_values(member, packed) end },
    changes = { 'HSCAN', CHANGES, function(field)
        if not find(field, '^[tlpqg]') then hf.note_flaw('changes', field, '', 'it is nothing that is left to do') end
    end },
}
for name, key in pairs({ bodies = BODIES, values = VALUES, errors = ERRORS, progress = PROGRESS, logs = LOGS,
    marks = MARKS }) do
    CHECKS[name] = { 'HSCAN', key, function(id)
        if not is_there(JOBS, id) then hf.note_flaw(name, id, '', 'its job is gone') end
    end, PIECES_SHARE }
end

function hf.check_others(what, cursor, page)
    local check = CHECKS[what]
    if type(check) == 'function' then
        check()
        return { '0' }
    end
    local command, key, each, share = unpack(check)
    return each_of(command, key, cursor, math.ceil(page / (share or 1)), each)
end

-- == part quarantine: an entry that cannot be read, or points to no job, is set aside so that it blocks nothing: it is
-- removed from its index and stored in `quarantine`, under the name of the index and the member. flaws() lists it;
-- nothing is lost. Written at once. Concurrency: a script runs alone.
-- lazy: built when a script first uses one of its names.

hf.number_aside = 0

function hf.set_aside(name, key, member, row)
    hf.number_aside = hf.number_aside + 1
    local why = row and 'its job says something else' or 'it leads to no job that can be read'
    local score = call('ZSCORE', key, member)
    call('ZREM', key, member)
    if hf.pending[key] then hf.pending[key][member] = nil end
    call('HSET', QUARANTINE, name .. '\0' .. member, cpack({ now, why, score or '' }))
end

-- Keeps an unreadable value in quarantine, because the caller is about to replace it.
function hf.keep_unread(name, field, packed)
    call('HSET', QUARANTINE, name .. '\0' .. field, cpack({ now, 'it cannot be read', packed }))
end

-- The jobs that members of an index point to, if they are in one of these states, and those members; each job once.
function hf.rows_at(name, key, members, ids, states)
    hf.load_rows(ids)
    local rows, kept, n, seen = {}, {}, 0, {}
    for i = 1, #ids do
        local row = hf.cache[ids[i]]
        if row and not seen[row] and find(states, row[STATE], 1, true) then
            n = n + 1
            rows[n], kept[n], seen[row] = row, members[i], true
        else
            hf.set_aside(name, key, members[i], row)
        end
    end
    return rows, kept
end

-- The same for an index by time: only jobs whose own time, as each(row) returns it, has passed. If the index has
-- another time than the job, the job is right.
function hf.rows_late(name, key, members, ids, states, each)
    local late = {}
    local rows, kept = hf.rows_at(name, key, members, ids, states)
    for i, row in ipairs(rows) do
        local at = each(row)
        if at and at <= now then
            late[#late + 1] = row
        elseif at then
            call('ZADD', key, format('%.17g', at), kept[i])
        else
            hf.set_aside(name, key, kept[i], row)
        end
    end
    return late
end
