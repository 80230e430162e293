-- claims: lease ready jobs of a queue from its two lanes. Every limit was obeyed when a job became ready, so what is
-- read here may be taken; ready and running both count as in play, so a claim changes no group's occupancy.

-- Expired jobs and those of a paused task on the way to what may be taken, in one claim: the server does nothing else
-- meanwhile. A lane behind them still gets one look; the next claim goes on where this one stopped.
local PASSED_OVER_MAX = 1000
hf.passed = 0

-- Up to `most` jobs of one lane into `rows`; answers whether the lane may have more.
function hf.draw(rows, queue, lane, most, claim)
    local prefix = hf.lane_prefix(queue, lane)
    local upper = '(' .. hf.escape(queue) .. (lane + 1)
    while most > 0 do
        hf.flush()
        local members = call('ZRANGEBYLEX', READY, '[' .. prefix, upper, 'LIMIT', 0, most)
        local ids = hf.ids_after(members, #prefix + 28)
        hf.load_rows(ids)
        local asked, taken = most, {}
        for i = 1, #ids do
            local row = hf.cache[ids[i]]
            if row[EXPIRES_AT] and row[EXPIRES_AT] <= now then
                hf.expire(row)
                hf.passed = hf.passed + 1
            elseif hf.any_pauses() and hf.paused('t' .. row[TASK]) then
                hf.make_ready(row) -- into the parked lane: its pause is still being carried out
                hf.passed = hf.passed + 1
            else
                taken[#taken + 1] = members[i]
                row[STATE], row[FENCE] = 'x', hf.next_tick()
                row[TOKEN] = claim.nonce .. format('%x', row[FENCE])
                row[WORKER], row[CLAIM_CALL], row[STARTED_AT], row[BEGUN] = claim.worker, claim.call, now, false
                if row[EXPIRES_AT] then hf.put(EXPIRING, row[ID], false) end
                hf.put(RUNNING, hf.running_member(row), '0')
                hf.changed[row[ID]] = row
                rows[#rows + 1] = row
                most = most - 1
            end
        end
        if #taken == #ids and #ids > 0 then -- one range, removed at the cost of one
            call('ZREMRANGEBYLEX', READY, '[' .. members[1], '[' .. members[#ids])
        else
            for i = 1, #taken do hf.put(READY, taken[i], false) end
        end
        if #ids < asked then return false end
        if hf.passed >= PASSED_OVER_MAX then return true end
    end
    return true
end

-- The lane with the call's parity goes first with the larger half; what one cannot use the other may. Answers whether
-- the queue may have more.
function hf.take(rows, queue, most, claim)
    local lane, had = claim.call % 2, #rows
    local more = hf.draw(rows, queue, lane, most - math.floor(most / 2), claim)
    hf.draw(rows, queue, 1 - lane, most - (#rows - had), claim)
    if more then hf.draw(rows, queue, lane, most - (#rows - had), claim) end
    return #rows - had == most or hf.passed >= PASSED_OVER_MAX
end
