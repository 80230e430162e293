-- rows: jobs read, kept for the length of the script, and written back once.
-- Takes ids. Nothing is written before save_rows, which the verb calls last. Safe: a script runs alone.

hf.cache, hf.changed, hf.ended_states = {}, {}, { o = true, c = true, d = true }

-- A record's fields, or false where they cannot be read. Taken one by one from behind the three bytes that say how many
-- they are, they go into a table of the right size at once: unpacked as an array, their table grows six times, which
-- takes as long again.
function hf.opened(packed, id)
    local row = { select(3, pcall(cmsgpack.unpack_limit, packed, FIELDS_NUMBER, 3)) }
    local state = row[STATE]
    return row[TERMS] ~= nil and row[ID] == id and (LIVE_STATES[state] or hf.ended_states[state]) and row or false
end

function hf.load_rows(ids)
    local missing, n = {}, 0
    for i = 1, #ids do
        local id = ids[i]
        if hf.cache[id] == nil then
            n = n + 1
            missing[n] = id
            hf.cache[id] = false
        end
    end
    for from = 1, n, ARGUMENTS_MAX do
        local upto = math.min(n, from + ARGUMENTS_MAX - 1)
        local found = call('HMGET', JOBS, unpack(missing, from, upto))
        for i = 1, upto - from + 1 do
            local id = missing[from + i - 1]
            if found[i] then hf.cache[id] = hf.opened(found[i], id) end
        end
    end
end

-- The job, or false where there is none or it cannot be read.
function hf.row_of(id)
    if hf.cache[id] == nil then hf.load_rows({ id }) end
    return hf.cache[id]
end

-- The job, if it is running under exactly this token; else false.
function hf.fenced(id, token)
    local row = hf.row_of(id)
    return row and row[STATE] == 'x' and row[TOKEN] == token and row
end

function hf.in_pieces(command, key, values, n)
    for from = 1, n, ARGUMENTS_MAX do
        call(command, key, unpack(values, from, math.min(n, from + ARGUMENTS_MAX - 1)))
    end
end

-- Writes back what changed; answers the packed records by id.
function hf.save_rows()
    local packed, values, n = {}, {}, 0
    for id, row in pairs(hf.changed) do
        local text = cpack(row)
        packed[id] = text
        values[n + 1], values[n + 2] = id, text
        n = n + 2
    end
    hf.in_pieces('HSET', JOBS, values, n)
    hf.changed = {}
    return packed
end
