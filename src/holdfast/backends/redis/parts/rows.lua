-- rows: jobs read, kept for the length of the script, and written back once.
-- Takes ids. Nothing is written before save_rows, which the verb calls last. Safe: a script runs alone.

hf.cache, hf.changed = {}, {}
hf.live_states = { s = true, w = true, r = true, x = true }

-- Opens these records, as many as there are ids from a place on, where they were found. Fails at one that cannot be
-- unpacked or has a value of a wrong kind; another that makes no sense is false.
-- Taken one by one from behind the three bytes that say how many they are, fields go into a table of the right size at
-- once: unpacked as an array, their table grows six times, which takes as long again.
function hf.open_rows(found, ids, from, upto)
    local cache, open = hf.cache, cmsgpack.unpack_limit
    for i = from, upto do
        local packed, id = found[i - from + 1], ids[i]
        if packed then
            local row = { select(2, open(packed, FIELDS_NUMBER, 3)) }
            cache[id] = row[ID] == id and ROW_IS_SOUND and row or false
        end
    end
end

-- All at once, which costs less; one by one only where one of them fails.
function hf.open_readable(found, ids, from, upto)
    if pcall(hf.open_rows, found, ids, from, upto) then return end
    for i = from, upto do
        if not pcall(hf.open_rows, { found[i - from + 1] }, ids, i, i) then hf.cache[ids[i]] = false end
    end
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
        hf.open_readable(call('HMGET', JOBS, unpack(missing, from, upto)), missing, from, upto)
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
