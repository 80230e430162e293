-- checking: what flaws looks at beside jobs and their indexes: numbers, buckets, workers, ids that are remembered, and
-- what is kept of jobs that are gone. Never writes.
-- seldom: built when a script first uses one of its names.

local RUNNING_SEEN_MAX = 20000 -- of more running jobs it is not checked how many each queue and task has
local PIECES_SHARE = 25 -- pieces may be long: so many times fewer of them are looked at
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

-- Has a record that scripts can work with values that cannot be shown?
function hf.is_odd(row)
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

-- Calls each(name, value) for one page of a hash or an index. Answers what the server's scan did.
local function each_of(command, key, cursor, page, each)
    local found = call(command, key, cursor, 'COUNT', page)
    for i = 1, #found[2], 2 do each(found[2][i], found[2][i + 1]) end
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
    if hf.latest_seq() > (tonumber(meta[3]) or 0) then
        hf.note_flaw('meta', 'seq', '', 'there are jobs with a higher number')
    end
    for kind, name in pairs({ p = 'pauses', o = 'overrides', t = 'tasks', f = 'flows', g = 'group_flows', d = 'letters',
        r = 'changes', m = 'remembered' }) do
        if hf.count_of(kind) > 0 and not (meta[7] and find(meta[7], kind, 1, true)) then
            hf.note_flaw('meta', 'used', '', 'it lacks that there are ' .. name .. ', so nobody looks at them')
        end
    end
end

-- Buckets: each is listed by the time from which it says nothing, and where it wakes its group, by that time.
local function check_flow(scope, packed)
    local flow = hf.sound_flow(hf.read(packed))
    if not flow then return end -- the caller reads it, too
    if not call('ZSCORE', LAPSING, scope) then
        hf.note_flaw('lapsing', sub(scope, 2), '', 'the index lacks this bucket')
    end
    if flow[3] and tonumber(call('ZSCORE', WAKING, scope) or nil) ~= flow[3] then
        hf.note_flaw('waking', sub(scope, 2), '', 'the index lacks this group, which its bucket should wake')
    end
end

local function check_waking(scope, score)
    local packed = call('HGET', GROUP_FLOWS, scope)
    local flow = packed and hf.sound_flow(hf.read(packed))
    if not (flow and flow[3] == tonumber(score)) then
        hf.note_flaw('waking', sub(scope, 2), '', 'the index has a group that no bucket wakes then')
    end
end

local function check_worker(id)
    local worker = hf.worker_row(id)
    if worker and tonumber(call('ZSCORE', DEADLINES, id) or nil) ~= worker[4] then
        hf.note_flaw('deadlines', id, '', 'the index lacks this worker, or has another deadline')
    end
    if not worker then hf.note_flaw('workers', id, '', 'it cannot be read and is left out') end
end

local function is_there(key, name) return call('HEXISTS', key, name) == 1 end

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
    deadlines = { 'ZSCAN', DEADLINES, function(id)
        if not is_there(WORKERS, id) then
            hf.note_flaw('deadlines', id, '', 'the index has a worker that is gone')
        end
    end },
    calls = { 'HSCAN', CALLS, function(id, packed)
        if not is_there(WORKERS, id) then
            hf.note_flaw('calls', id, '', 'its worker is gone')
        elseif not hf.sound_call(hf.read(packed)) then
            hf.note_flaw('calls', id, '', 'it cannot be read')
        end
    end },
    portraits = { 'HSCAN', PORTRAITS, function(id)
        if not is_there(WORKERS, id) then hf.note_flaw('portraits', id, '', 'its worker is gone') end
    end },
    changes = { 'HSCAN', CHANGES, function(field)
        if not find(field, '^[tlpqg]') then hf.note_flaw('changes', field, '', 'it is nothing that is left to do') end
    end },
}
for name, key in pairs({ bodies = BODIES, values = VALUES, errors = ERRORS, progress = PROGRESS, logs = LOGS }) do
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
    return each_of(check[1], check[2], cursor, math.ceil(page / (check[4] or 1)), check[3])
end
