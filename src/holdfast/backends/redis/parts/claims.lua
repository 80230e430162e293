-- claims: lease ready jobs of a queue, lane by lane. The limit and rate of a group were obeyed when its jobs became
-- ready; ready and running both count as in play, so a claim changes no group's occupancy. Those of queues and tasks
-- are obeyed here: nothing is leased beyond them, and each bucket is charged once with all that started.

-- Expired jobs, those of a task that changed its lane and groups still to be brought to a rule are seen to on the way
-- to what may be taken, as many as the claim may sweep; what it meets beyond is left where it is. A lane behind
-- them still gets one look; the next claim goes on.
local GROUP_LOOKS_MAX = 64
hf.passed = 0

-- Sees to what keeps the job from being leased. Answers whether it may be leased now, and whether it stays where it is.
function hf.see_to(row, claim)
    if hf.passed >= claim.sweep then return false, true end
    hf.passed = hf.passed + 1
    if row[EXPIRES_AT] and row[EXPIRES_AT] <= now then
        hf.expire(row)
    elseif hf.lane_of(row) ~= row[LANE] % 4 then
        hf.change_lane(row) -- a pause, a limit or a rule of its task is still being carried out
    else
        local before = hf.moved
        hf.fit(hf.place_of(row[QUEUE], row[GROUP]))
        hf.passed = hf.passed + hf.moved - before
        return row[STATE] == 'r', false
    end
    return false, false
end

-- Is there something that keeps the job from being leased?
function hf.is_kept_back(row, claim)
    return row[EXPIRES_AT] and row[EXPIRES_AT] <= now or claim.ruled and hf.lane_of(row) ~= row[LANE] % 4
        or claim.is_changing and row[GROUP] and not hf.is_fitted(row[QUEUE], hf.place_of(row[QUEUE], row[GROUP]))
end

function hf.lease(row, claim)
    row[STATE], row[FENCE] = 'x', hf.next_tick()
    row[TOKEN] = claim.nonce .. format('%x', row[FENCE])
    row[WORKER], row[CLAIM_CALL], row[STARTED_AT], row[BEGUN] = claim.worker, claim.call, now, false
    if row[EXPIRES_AT] then hf.put(EXPIRING, row[ID], false) end
    if row[LANE] > 7 then hf.put(STAGED, hf.staged_member(row), false) end
    if row[TERMS] then hf.start_key(row) end
    if row[GROUP] and (claim.watched or claim.by_group) then hf.note_group(row, claim) end
    hf.begun_for[row[TASK]] = (hf.begun_for[row[TASK]] or 0) + 1
    hf.put(RUNNING, hf.running_member(row), '0')
    hf.changed[row[ID]] = row
    claim.rows[#claim.rows + 1] = row
end

-- Up to `most` jobs of one lane. A lane has a key, the range of its members, its task where it is apart, and whether it
-- may have more to give.
function hf.draw(lane, most, claim)
    local skipped = 0 -- members that stay at the front of the range
    while most > 0 and lane.more do
        hf.flush()
        local members = call('ZRANGEBYLEX', lane.key, '[' .. lane.prefix, lane.upper, 'LIMIT', skipped, most)
        local ids = hf.ids_after(members, #lane.prefix + 28)
        hf.load_rows(ids)
        if #ids < most then lane.more = false end
        local taken, was_kept, may_be_kept = {}, false, claim.ruled or claim.is_changing
        for i = 1, #ids do
            local row = hf.cache[ids[i]]
            local may, stays = row and row[STATE] == 'r', false
            if not may then -- where it was not withdrawn just now, it leads to no job, or to one that is leased
                hf.flush()
                if call('ZSCORE', lane.key, members[i]) then
                    hf.set_aside(lane.task and 'apart' or 'ready', lane.key, members[i], row)
                    hf.passed = hf.passed + 1
                end
            elseif (may_be_kept or row[EXPIRES_AT]) and hf.is_kept_back(row, claim) then
                may, stays = hf.see_to(row, claim)
                was_kept = true
            end
            if not may then
                if stays then skipped = skipped + 1 end
            elseif claim.by_group and row[GROUP] and hf.has_share(row, claim) then
                if lane.looks == GROUP_LOOKS_MAX then
                    lane.more = false
                    break
                end
                lane.looks, skipped = (lane.looks or 0) + 1, skipped + 1
            elseif claim.weighs and not hf.fits(ids[i], claim) then
                claim.full = true
                break
            else
                taken[#taken + 1] = members[i]
                hf.lease(row, claim)
            end
        end
        most = most - #taken
        if #taken == #ids and #ids > 0 and not was_kept then -- one range, removed at the cost of one
            call('ZREMRANGEBYLEX', lane.key, '[' .. members[1], '[' .. members[#ids])
        else
            for i = 1, #taken do hf.put(lane.key, taken[i], false) end
        end
        if claim.full or hf.passed >= claim.sweep then return end
    end
end

-- The lane numbered by the call goes first, the others follow; each gets its share of what is left, and then what
-- others could not use. Answers whether the queue may have more.
function hf.take(queue, most, claim)
    local low, high = hf.lane_prefix(queue, 0), hf.lane_prefix(queue, 1)
    local lanes = {
        { key = READY, prefix = low, upper = '(' .. high, more = true },
        { key = READY, prefix = high, upper = '(' .. hf.lane_prefix(queue, 2), more = true },
    }
    if claim.any_apart then hf.add_apart(lanes, queue, claim) end
    local number, rows = #lanes, claim.rows
    local upto, first = #rows + most, claim.call % number
    for i = 0, 2 * number - 1 do
        local lane, left = lanes[(first + i) % number + 1], upto - #rows
        if left > 0 and lane.more and not claim.full then
            local share = i < number and math.ceil(left / (number - i)) or left
            hf.draw(lane, lane.task and hf.share_apart(share, lane, claim) or share, claim)
        end
    end
    return #rows == upto or hf.passed > 0 or claim.full
end

function hf.claim_queue(queue, most, claim)
    local rule, had, room = hf.rule_of(queue), #claim.rows, UNLIMITED
    if rule.rate then hf.set_back(rule.rate, 'q' .. queue) end
    if rule.rate or rule.limit < UNLIMITED or hf.any('p') or hf.any('f') then room = hf.queue_room(queue) end
    -- Groups that get another job ready when one of theirs is leased, or whose bucket is charged.
    claim.watched = rule[5] or (rule[2] ~= 'strict' and rule[1] > READY_PER_GROUP_MAX) or hf.any('o')
    local more = most > 0 and room > 0 and hf.take(queue, math.min(most, room), claim)
    local leased = #claim.rows - had
    if room <= 0 or (most > 0 and not claim.capped and (not more or leased == room)) then
        hf.stirred[queue] = nil -- nothing claimable is left there to tell others of
    end
    if leased > 0 then
        hf.begun_of[queue] = (hf.begun_of[queue] or 0) + leased
        if rule.rate then hf.charge(rule.rate, 'q' .. queue, leased) end
    end
end
