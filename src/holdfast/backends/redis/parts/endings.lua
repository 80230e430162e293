-- endings: THE routine that ends leases, whoever noticed, and how a job finishes.
-- The token is void, the counters say why, the place is free. The caller checked the token; groups are refilled after.

local RETAIN_SECONDS = 86400

-- A logical job ended well, or was cancelled: its letter closes. `value`: nil, true for null, or its place in ARGV.
function hf.finish(row, was_in, had_key, state, retain, value)
    row[HELD] = false
    row[STATE] = state
    row[FINISHED_AT] = now
    row[PRUNE_AT] = now + math.max(retain, REMEMBER_SECONDS_MIN)
    if row[TERMS] then row[PRUNE_AT] = math.max(row[PRUNE_AT], hf.end_key(row) or 0) end
    row[VALUE] = false
    if value == true then
        row[VALUE] = true
    elseif value then
        row[VALUE] = 1
        call('HSET', VALUES, row[ID], ARGV[value])
    end
    hf.enter(row, was_in, had_key)
    local letter = hf.any('d') and hf.drop_letter(hf.logical_of(row))
    if letter and letter.id ~= row[ID] then hf.supersede(letter.id) end
end

-- `into` 'r' means claimable again by the job's old turn; 's', due after how.delay.
function hf.end_lease(row, into, how)
    local was_in, had_key = hf.leave(row)
    if how.counted then row[ATTEMPTS] = row[ATTEMPTS] + 1 end
    if how.failed then row[FAILURES] = row[FAILURES] + 1 end
    if how.stalled then
        if how.alone then row[STALLS] = row[STALLS] + 1 else row[SHARED_STALLS] = row[SHARED_STALLS] + 1 end
        row[SUSPECT] = true
    elseif how.counted then
        row[SUSPECT] = false
    end
    local failure = how.failure
    if failure then
        failure.at, failure.attempt, failure.fence = now, row[ATTEMPTS], row[FENCE]
        failure.worker, failure.started_at = row[WORKER], row[STARTED_AT]
        hf.add_error(row[ID], failure)
    end
    row[TOKEN], row[WORKER], row[CLAIM_CALL] = false, false, false
    local finished = not hf.live_states[into]
    row[HELD] = row[GROUP] and not finished and hf.strict(row[QUEUE], row[GROUP]) or false
    -- it was claimed in time; what follows is not a late start
    if how.counted and not finished then row[EXPIRES_AT] = false end
    if into == 'd' then
        hf.bury(row, was_in, had_key, how.reason or 'failed', failure)
    elseif finished then
        hf.finish(row, was_in, had_key, into, how.retain or RETAIN_SECONDS, how.value)
    elseif into == 's' then
        row[DUE_AT] = now + how.delay
        row[TURN] = false
        row[STATE] = 's'
        hf.enter(row, was_in, had_key)
    else
        hf.enter_play(row, was_in, had_key)
    end
end
