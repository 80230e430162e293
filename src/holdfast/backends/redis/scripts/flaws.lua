-- flaws: one page of what contradicts itself or cannot be read: records against all they should be listed in, or the
-- members of an index against their records. A page is one instant, so a job that moves is never taken for a flaw.
-- Takes now, what (a key's name), a cursor of the server's scan, how many to look at.
-- Never writes. Returns the cursor to go on with ('0' at the end), then flat lines: place, id, field, what is wrong.

local SMALL_BODY = 65536 -- a longer body is not read to see whether its lengths are true
local what, cursor, page = args[2], args[3], args[4]
local INDEXES = { ready = READY, apart = APART, staged = STAGED, waiting = WAITING, scheduled = SCHEDULED, due = DUE,
    running = RUNNING, play = PLAY, finished = FINISHED, prunable = PRUNABLE, expiring = EXPIRING, seqs = SEQS,
    kept = KEPT }
local note = hf.note_flaw

-- All a job should be listed in: index → member → score; nil where its record has values of a wrong kind.
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
    local tail = ({ ready = 29, apart = 28, staged = 8, waiting = 13, scheduled = 17, running = 16, play = 0,
        finished = 8, kept = 16 })[name]
    local at = name == 'finished' and 1 or 0
    for _ = 1, names do at = string.find(member, '\0', at + 1, true) or #member end
    if name == 'running' then return sub(member, (string.find(member, '\0', at + tail + 1, true) or #member) + 1) end
    return sub(member, at + tail + 1)
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
    for _, one in ipairs({ { 'errors', ERRORS }, { 'progress', PROGRESS }, { 'logs', LOGS } }) do
        local packed = call('HGET', one[2], id)
        if packed and not hf.read(packed) then note(one[1], id, one[1], 'it cannot be read') end
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
    if not members or hf.is_odd(row) then note('jobs', id, 'record', 'its record cannot be read') end
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

-- What a letter is listed in, and its job.
local function check_letter(logical, packed)
    local letter = hf.sound_letter(hf.read(packed))
    if not letter then
        note('letters', byte(logical) == 105 and sub(logical, 2) or logical, '', 'it cannot be read and is left out')
        return
    end
    local lists = { { 'holders', HOLDERS, hf.escape(letter.id) .. logical }, { 'failed', FAILED, logical },
        { 'dead', DEAD, hf.dead_member(logical, letter) } }
    if letter.revive_at then lists[4] = { 'revivals', REVIVALS, logical } end
    for _, one in ipairs(lists) do
        if not call('ZSCORE', one[2], one[3]) then note(one[1], letter.id, '', 'the index lacks this dead letter') end
    end
    if not hf.row_of(letter.id) then note('letters', letter.id, 'id', 'its job is gone or cannot be read') end
end

-- Entries that lead to a letter or the holder of a key; those that lead nowhere.
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
    for i = 1, #found[2], 2 do check_entry(found[2][i], found[2][i + 1]) end
elseif what == 'letters' then
    found = call('HSCAN', LETTERS, cursor, 'COUNT', page)
    for i = 1, #found[2], 2 do check_letter(found[2][i], found[2][i + 1]) end
elseif what == 'jobs' then
    found = call('HSCAN', JOBS, cursor, 'COUNT', page)
    for i = 1, #found[2], 2 do check_job(found[2][i], found[2][i + 1]) end
elseif what == 'quarantine' then
    found = call('HSCAN', QUARANTINE, cursor, 'COUNT', page)
    for i = 1, #found[2], 2 do
        local name, member = string.match(found[2][i], '^(%l+)%z(.*)$')
        local said = hf.read(found[2][i + 1]) or {}
        local id = INDEXES[name] and id_of(name, member) or member or found[2][i]
        note('quarantine', id, '', 'set aside from ' .. (name or 'somewhere') .. ': ' .. tostring(said[2]))
    end
elseif not INDEXES[what] then
    found = hf.check_others(what, cursor, page)
else
    local key = INDEXES[what]
    found = call('ZSCAN', key, cursor, 'COUNT', page)
    for i = 1, #found[2], 2 do
        local member = found[2][i]
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
return { found[1], hf.flaw_lines }
