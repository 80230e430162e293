-- promote: bring due jobs into play.

-- == script promote: bring due jobs into play, bury expired unstarted ones, revive dead letters that are due for it.
-- args: now, limit
-- Bounded. Returns due, expired, revived, more. Concurrency: a script runs alone; what it moved is no longer due.

if sealed then return hf.refused_sealed() end
local due, expired, revived, more = hf.promote(args.limit)
hf.close()
return { due, expired, revived, more and 1 or 0 }

-- == part dues: bury jobs that expired unstarted, bring due ones into play, revive letters that are due for it, then
-- refill groups whose rate allows it by now. Shared by the sweep and claim. Bounded. Returns due, expired,
-- revived, more.

function hf.promote(limit)
    hf.flush()
    local most, told = math.min(limit, PROPAGATE_MAX), 0
    if hf.any('e') then told = hf.propagate(most) end
    limit = math.max(0, limit - told)
    local expired = call('ZRANGEBYSCORE', EXPIRING, '-inf', now, 'LIMIT', 0, limit)
    if #expired > 0 then
        local function expires_at(row) return row[EXPIRES_AT] end
        local rows = hf.rows_late('expiring', EXPIRING, expired, expired, 'swr', expires_at)
        for _, row in ipairs(rows) do hf.expire(row) end
        hf.flush()
    end
    local room = limit - #expired
    local due = {}
    if room > 0 then due = call('ZRANGEBYSCORE', DUE, '-inf', now, 'LIMIT', 0, room) end
    if #due > 0 then
        local function due_at(row) return row[DUE_AT] end
        for _, row in ipairs(hf.rows_late('due', DUE, due, hf.ids_after(due, 8), 's', due_at)) do
            local was_in, had_key = hf.leave(row)
            hf.enter_play(row, was_in, had_key)
        end
    end
    local revived = 0
    room = room - #due
    local late = {}
    if room > 0 then late = call('ZRANGEBYSCORE', REVIVALS, '-inf', now, 'LIMIT', 0, room) end
    for _, logical in ipairs(late) do
        local letter = hf.letter_at(logical)
        local row = letter and hf.row_of(letter.id)
        local taken = row and row[KEY] and hf.key_taken(hf.key_name(row))
        if not row or row[STATE] ~= 'd' then
            hf.set_aside('revivals', REVIVALS, logical, row)
        elseif taken and taken ~= row then
            -- A newer job with this key is live: its end will close or merge the letter.
            letter.revive_at = nil
            hf.keep_letter(logical, letter)
        else
            hf.revive(row, 1)
            hf.mark(row, { kind = 'revive', text = 'automatic' })
            revived = revived + 1
        end
    end
    if hf.any('g') then hf.wake_groups(limit) end
    hf.refill_touched()
    return #due, #expired, revived, told >= most or #due + #expired + #late >= limit
end
