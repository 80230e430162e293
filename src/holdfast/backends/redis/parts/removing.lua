-- removing: finished jobs are removed, with everything kept of them. The caller made sure that none holds a letter.
-- seldom: built when a script first uses one of its names.

function hf.remove_rows(ids)
    for _, id in ipairs(ids) do
        local row = hf.cache[id]
        hf.list(row, false)
        hf.put(SEQS, id, false)
        if row[KEY] and hf.holds(row) then -- its window has passed
            hf.set_holds(row, false)
            hf.note_key(row, true)
        end
    end
    hf.flush()
    hf.save_keys()
    for _, key in ipairs({ JOBS, BODIES, VALUES, ERRORS, PROGRESS, LOGS }) do hf.in_pieces('HDEL', key, ids, #ids) end
end

-- Has the window of its key passed, if it has one?
function hf.is_past_window(row)
    local ends = hf.window_end(row)
    return not ends or ends <= now
end
