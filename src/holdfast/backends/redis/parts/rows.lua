-- rows: jobs read, kept for the length of the script, and written back once.
-- Takes ids. Nothing is written before save_rows, which the verb calls last. Safe: a script runs alone.

local cache, changed = {}, {}

local function load_rows(ids)
    local missing, n = {}, 0
    for i = 1, #ids do
        local id = ids[i]
        if cache[id] == nil then
            n = n + 1
            missing[n] = id
            cache[id] = false
        end
    end
    for from = 1, n, ARGUMENTS_MAX do
        local upto = math.min(n, from + ARGUMENTS_MAX - 1)
        local found = call('HMGET', JOBS, unpack(missing, from, upto))
        for i = 1, upto - from + 1 do
            if found[i] then cache[missing[from + i - 1]] = cunpack(found[i]) end
        end
    end
end

-- The job, or false.
local function row_of(id)
    if cache[id] == nil then load_rows({ id }) end
    return cache[id]
end

-- The job, if it is running under exactly this token; else false.
local function fenced(id, token)
    local row = row_of(id)
    return row and row[STATE] == 'x' and row[TOKEN] == token and row
end

local function in_pieces(command, key, values, n)
    for from = 1, n, ARGUMENTS_MAX do
        call(command, key, unpack(values, from, math.min(n, from + ARGUMENTS_MAX - 1)))
    end
end

-- Writes back what changed; answers the packed records by id.
local function save_rows()
    local packed, values, n = {}, {}, 0
    for id, row in pairs(changed) do
        local text = cpack(row)
        packed[id] = text
        values[n + 1], values[n + 2] = id, text
        n = n + 2
    end
    in_pieces('HSET', JOBS, values, n)
    changed = {}
    return packed
end
