-- quarantine: what cannot be read, or leads to no job, is set aside, so that it stops nobody: out of its index, into
-- `quarantine`, under the name of the index and the member. flaws() lists it; nothing is lost.
-- Written at once. Safe against a rival: a script runs alone.
-- seldom: built when a script first uses one of its names.

hf.number_aside = 0

function hf.set_aside(name, key, member, row)
    hf.number_aside = hf.number_aside + 1
    local why = row and 'its job is in another state' or 'it leads to no job that can be read'
    local score = call('ZSCORE', key, member)
    call('ZREM', key, member)
    if hf.pending[key] then hf.pending[key][member] = nil end
    call('HSET', QUARANTINE, name .. '\0' .. member, cpack({ now, why, score or '' }))
end

-- A value that cannot be read is replaced by its caller, and kept here.
function hf.keep_unread(name, field, packed)
    call('HSET', QUARANTINE, name .. '\0' .. field, cpack({ now, 'it cannot be read', packed }))
end

-- The jobs that members of an index lead to, with those members, where they are in one of these states.
function hf.rows_at(name, key, members, ids, states)
    hf.load_rows(ids)
    local rows, kept, n = {}, {}, 0
    for i = 1, #ids do
        local row = hf.cache[ids[i]]
        if row and find(states, row[STATE], 1, true) then
            n = n + 1
            rows[n], kept[n] = row, members[i]
        else
            hf.set_aside(name, key, members[i], row)
        end
    end
    return rows, kept
end
