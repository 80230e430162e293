-- scan: jobs that meet the conditions of a query, and how many. Never writes.

-- == script scan: jobs that meet the conditions, newest first: of the given ids, or of all jobs below a seq.
-- args: now, ids, below, page, wanted, bytes, light, fields, conditions
-- `ids` or nil; `below`, the seq to stay below, or nil; `page`: how many to check; `wanted`: how many to return at
-- most; `bytes`: the job that exceeds them is the last; `light`: without bodies, values and errors; `fields`: how many
-- of a record the conditions need; the conditions are those of part conditions. Returns the seq to continue below (''
-- at the end), how many were checked, and the jobs' pieces. Never writes.

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
-- negated, states, is_text, tests}: one of the tests holds or, negated, none. A test of a text has its parts, with
-- anything between them; a test of a number has an operator and a number. `failed`: a failure is recorded. Concurrency:
-- a script runs alone.

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
        if is_text then
            any = any or fits(test, found)
        else
            any = any or compares(test[COMPARED_OP], found, test[COMPARED_NUMBER])
        end
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

-- Calls each(id, row) for those that meet the conditions, until it returns true. Returns how many were checked. A
-- record that cannot be read meets no condition; without any it is passed, with row nil.
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

-- == part light_pieces: ids and records alone, of jobs that are listed without their bodies.

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
