-- endings: THE routine that ends leases, whoever noticed, and how a job finishes.
-- The token is void, the counters say why, the place is free. The caller checked the token; groups are refilled after.

local ERRORS_KEPT_MAX, RETAIN_SECONDS = 10, 86400

function hf.add_error(id, failure)
    local packed = call('HGET', ERRORS, id)
    local failures = packed and cunpack(packed) or {}
    failures[#failures + 1] = failure
    if #failures > ERRORS_KEPT_MAX then table.remove(failures, 1) end
    call('HSET', ERRORS, id, cpack(failures))
end

-- A logical job ended well, or was cancelled: its letter closes. `value`: nil, true for null, or its place in ARGV.
function hf.finish(row, was_in, was_live, state, retain, value)
    row[HELD] = false
    row[STATE] = state
    row[FINISHED_AT] = now
    row[PRUNE_AT] = now + math.max(retain, REMEMBER_SECONDS_MIN)
    row[VALUE] = false
    if value == true then
        row[VALUE] = true
    elseif value then
        row[VALUE] = 1
        call('HSET', VALUES, row[ID], ARGV[value])
    end
    hf.enter(row, was_in, was_live)
    local letter = hf.any_letters() and hf.drop_letter(hf.logical_of(row))
    if letter and letter.id ~= row[ID] then hf.let_go(hf.row_of(letter.id), 'superseded') end
end

-- `into` 'r' means claimable again by the job's old turn; 's', due after how.delay.
function hf.end_lease(row, into, how)
    local was_in, was_live = hf.leave(row)
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
    local finished = not LIVE_STATES[into]
    row[HELD] = row[GROUP] and not finished and hf.strict(row[QUEUE]) or false
    -- it was claimed in time; what follows is not a late start
    if how.counted and not finished then row[EXPIRES_AT] = false end
    if into == 'd' then
        hf.bury(row, was_in, was_live, how.reason or 'failed', failure)
    elseif finished then
        hf.finish(row, was_in, was_live, into, how.retain or RETAIN_SECONDS, how.value)
    elseif into == 's' then
        row[DUE_AT] = now + how.delay
        row[TURN] = false
        row[STATE] = 's'
        hf.enter(row, was_in, was_live)
    else
        hf.enter_play(row, was_in, was_live)
    end
end

local FREE = {}

-- A lease that costs nothing; where a cancel was asked for, the job is cancelled.
function hf.give_back(row, delay)
    if row[CANCEL_REQUESTED] then
        hf.end_lease(row, 'c', FREE)
    elseif delay and delay > 0 then
        hf.end_lease(row, 's', { delay = delay })
    else
        hf.end_lease(row, 'r', FREE)
    end
end

-- Death without a lease: expired, or by an operator's word.
function hf.bury_unstarted(row, reason, text)
    local was_in, was_live = hf.leave(row)
    local failure = { at = now, reason = reason, text = text, attempt = row[ATTEMPTS], fence = row[FENCE] }
    hf.add_error(row[ID], failure)
    hf.bury(row, was_in, was_live, reason, failure)
end

function hf.expire(row) hf.bury_unstarted(row, 'expired', 'not claimed before it expired') end
