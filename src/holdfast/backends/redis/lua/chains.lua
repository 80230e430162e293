-- chains: consecutive jobs of a strict group that one claim leases together.

-- == part chains: lease jobs of strict groups together with those that wait behind them (R81).
-- Concurrency: a script runs alone; the group stays full until all of them have ended.
-- lazy: built when a script first uses one of its names.

-- Whether jobs may be chained to this one, or this one to others.
local function may_chain(row)
    return not row[SUSPECT] and row[MAX_STALLS] > 0 and hf.lane_of(row) == 1
end

-- Whether a limit, rate or order window applies to each job of the group: then none is leased ahead.
local function is_counted(row, place)
    local rule = hf.rule_of(row[QUEUE])
    local _, rate, strict = hf.group_of(place)
    return rule.rate or rule.limit < UNLIMITED or rate or rule[RULE_ORDER_WINDOW] or not strict
end

-- Leases up to `most` jobs behind this one; returns how many.
local function chain_to(row, place, most, claim)
    local members = call('ZRANGEBYLEX', WAITING, '[' .. place, '(' .. place .. '\255', 'LIMIT', 0, most)
    local ids, before = hf.waiting_ids(members, #place), row
    hf.load_rows(ids)
    for i = 1, #ids do
        local next_one = hf.cache[ids[i]]
        if not next_one or next_one[STATE] ~= 'w'
            or next_one[PRIORITY] ~= before[PRIORITY] or hf.before(next_one, before)
            or next_one[EXPIRES_AT] and next_one[EXPIRES_AT] <= now or not may_chain(next_one) then return i - 1 end
        if claim.weighs and not hf.fits(ids[i], claim) then
            claim.full = true
            return i - 1
        end
        next_one[LANE], before = 1, next_one
        hf.put(WAITING, members[i], false)
        hf.put(PLAY, place .. ids[i], '0')
        hf.lease(next_one, claim)
    end
    return #ids
end

-- Returns how many jobs were chained.
function hf.chain(claim, by_queue, most)
    local fronts, left = {}, most
    for _, row in ipairs(claim.rows) do
        if row[GROUP] and (by_queue[row[QUEUE]] or 1) > 1 and may_chain(row)
            and not is_counted(row, hf.place_of(row[QUEUE], row[GROUP])) then fronts[#fronts + 1] = row end
    end
    hf.flush()
    if #fronts == 0 or call('ZCOUNT', DUE, '-inf', now) > 0 then return 0 end
    for i, row in ipairs(fronts) do
        local wanted = math.min(by_queue[row[QUEUE]] - 1, math.ceil(left / (#fronts - i + 1)))
        if wanted > 0 and not claim.full then
            local leased = chain_to(row, hf.place_of(row[QUEUE], row[GROUP]), wanted, claim)
            left = left - leased
            hf.begun_of[row[QUEUE]] = (hf.begun_of[row[QUEUE]] or 0) + leased
        end
    end
    return most - left
end
