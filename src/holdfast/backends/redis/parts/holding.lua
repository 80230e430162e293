-- holding: who holds a key, and who may take it. Takes names as hf.key_name makes them.
-- seldom: built when a script first uses one of its names.

-- The job whose flag says that it holds the key, or nil.
function hf.key_holder(name)
    local id = hf.key_changes[name]
    if id == nil then id = call('HGET', KEYED, name) end
    return id and hf.row_of(id) or nil
end

-- The job that keeps others from the key, or nil: one whose window has passed does so no longer.
function hf.key_taken(name)
    local row = hf.key_holder(name)
    local ends = row and hf.window_end(row)
    return not (ends and now >= ends) and row or nil
end

-- Another job takes the key: the flag of a holder whose window has passed falls.
function hf.free_key(name)
    local row = hf.key_holder(name)
    if row then
        hf.set_holds(row, false)
        hf.changed[row[ID]] = row
    end
end
