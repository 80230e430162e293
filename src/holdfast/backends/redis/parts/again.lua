-- again: a finished job comes into play with fresh budgets and its key; what it suffered stays on record.
-- seldom: built when a script first uses one of its names.

function hf.again(row)
    local was_in, had_key = hf.leave(row)
    if row[KEY] and not had_key then
        hf.free_key(hf.key_name(row))
        hf.set_holds(row, true)
    end
    if row[VALUE] == 1 then call('HDEL', VALUES, row[ID]) end
    call('HDEL', PROGRESS, row[ID])
    row[TURN], row[ATTEMPTS], row[FAILURES], row[STALLS] = false, 0, 0, 0
    row[SHARED_STALLS], row[SUSPECT] = 0, false
    row[DUE_AT], row[EXPIRES_AT], row[FINISHED_AT], row[PRUNE_AT] = now, false, false, false
    row[REASON], row[VALUE], row[BEGUN], row[CANCEL_REQUESTED] = false, false, false, false
    hf.enter_play(row, was_in, had_key)
end

-- Brings a dead job back; its letter stays and says so. `cycles` is 1 for an automatic revival.
function hf.revive(row, cycles)
    hf.again(row)
    local logical = hf.logical_of(row)
    local letter = hf.letter_at(logical)
    if letter and letter.id == row[ID] then
        letter.revived_at, letter.revive_at, letter.cycles = now, nil, letter.cycles + cycles
        hf.keep_letter(logical, letter)
    end
end
