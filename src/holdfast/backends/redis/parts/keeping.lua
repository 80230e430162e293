-- keeping: what only some jobs have: a key they hold, a number of them that is kept, several ready ones in their group.
-- seldom: built when a script first uses one of its names.

-- Among those of a task that keeps a number of its finished jobs. It leaves also where that is no longer so.
function hf.list_kept(row, present)
    if hf.any_kept == nil then hf.any_kept = call('ZCARD', KEPT) > 0 end
    if present and hf.task_of(row[TASK])[4] or not present and hf.any_kept then
        hf.put(KEPT, hf.escape(row[TASK]) .. spack('>dI8', row[FINISHED_AT], row[SEQ]) .. row[ID], present and '0')
    end
end

-- What the job's key is kept under: of its queue and task, or of its task alone.
function hf.key_name(row)
    local terms = row[TERMS]
    if terms and terms ~= true and terms[1] then return 'g' .. hf.escape(row[TASK]) .. row[KEY] end
    return hf.logical_of(row)
end

-- Does the job hold its key?
function hf.holds(row)
    local terms = row[TERMS]
    if terms and terms ~= true then return terms[6] end
    return terms
end

function hf.set_holds(row, holds)
    local terms = row[TERMS]
    if terms and terms ~= true then terms[6] = holds else row[TERMS] = holds end
end

-- Its key is written down where it holds it now and did not before, or the other way round.
function hf.note_key(row, had_key)
    local holds = hf.holds(row)
    if (had_key or false) == holds then return end
    local name = hf.key_name(row)
    if holds then
        hf.key_changes[name] = row[ID]
    elseif hf.key_changes[name] == nil or hf.key_changes[name] == row[ID] then
        hf.key_changes[name] = false
    end
end

-- When the window of the job's key ends; nil where it has none.
function hf.window_end(row)
    local terms = row[TERMS]
    local window = row[KEY] and terms and terms ~= true and terms[3]
    return window and row[CREATED_AT] + window or nil
end

-- The job finished: its key is free, unless it has a window. Answers when that ends.
function hf.end_key(row)
    local ends = hf.window_end(row)
    if not ends then hf.set_holds(row, false) end
    return ends
end

-- The job is leased: a key that is held until then is free.
function hf.start_key(row)
    local terms = row[TERMS]
    if terms == true or not (terms[6] and terms[2]) or terms[3] then return end
    terms[6] = false
    hf.note_key(row, true)
end

function hf.save_keys()
    for name, id in pairs(hf.key_changes) do
        if id then call('HSET', KEYED, name, id) else call('HDEL', KEYED, name) end
    end
    hf.key_changes = {}
end

function hf.staged_member(row)
    return hf.place_of(row[QUEUE], row[GROUP]) .. spack('>I8', row[TURN] + TURN_ZERO) .. row[ID]
end
