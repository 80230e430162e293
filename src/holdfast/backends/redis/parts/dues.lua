-- dues: bury what expired unstarted, bring what is due into play, revive letters whose time has come. The sweep and
-- claim share it. Then groups are refilled whose rate allows it by now. Bounded: answers {due, expired, revived, more}.

function hf.promote(limit)
    hf.flush()
    local expired = call('ZRANGEBYSCORE', EXPIRING, '-inf', now, 'LIMIT', 0, limit)
    hf.load_rows(expired)
    for _, id in ipairs(expired) do hf.expire(hf.cache[id]) end
    hf.flush()
    local room = limit - #expired
    local due = {}
    if room > 0 then due = hf.ids_after(call('ZRANGEBYSCORE', DUE, '-inf', now, 'LIMIT', 0, room), 8) end
    hf.load_rows(due)
    for _, id in ipairs(due) do
        local row = hf.cache[id]
        local was_in, had_key = hf.leave(row)
        hf.enter_play(row, was_in, had_key)
    end
    local revived = 0
    room = room - #due
    local late = {}
    if room > 0 then late = call('ZRANGEBYSCORE', REVIVALS, '-inf', now, 'LIMIT', 0, room) end
    for _, logical in ipairs(late) do
        local letter = hf.letter_at(logical)
        local row = hf.row_of(letter.id)
        local taken = row[KEY] and hf.key_taken(hf.key_name(row))
        if taken and taken ~= row then
            -- a newer job of this key is on its way: its end will close or merge the letter
            letter.revive_at = nil
            hf.keep_letter(logical, letter)
        else
            hf.revive(row, 1)
            revived = revived + 1
        end
    end
    if hf.any('g') then hf.wake_groups(limit) end
    hf.refill_touched()
    return { #due, #expired, revived, #due + #expired + #late >= limit }
end
