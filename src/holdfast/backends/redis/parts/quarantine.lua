-- quarantine: what cannot be read, or leads to no job, is set aside, so that it stops nobody: out of its index, into
-- `quarantine`, under the name of the index and the member. flaws() lists it; nothing is lost.
-- Written at once. Safe against a rival: a script runs alone.
-- seldom: built when a script first uses one of its names.

hf.number_aside = 0

function hf.set_aside(name, key, member, row)
    hf.number_aside = hf.number_aside + 1
    local why = row and 'its job says something else' or 'it leads to no job that can be read'
    local score = call('ZSCORE', key, member)
    call('ZREM', key, member)
    if hf.pending[key] then hf.pending[key][member] = nil end
    call('HSET', QUARANTINE, name .. '\0' .. member, cpack({ now, why, score or '' }))
end

-- A value that cannot be read is replaced by its caller, and kept here.
function hf.keep_unread(name, field, packed)
    call('HSET', QUARANTINE, name .. '\0' .. field, cpack({ now, 'it cannot be read', packed }))
end

-- The jobs that members of an index lead to, with those members, where they are in one of these states; each job once.
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

-- The same of an index by a time that jobs have, too: only those whose own time, as each gives it, has come. Where the
-- index says another time, the job is right.
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
