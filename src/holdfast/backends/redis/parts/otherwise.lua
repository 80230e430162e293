-- otherwise: how jobs end but by success: given back, cancelled, expired, buried unstarted; and what they suffered.
-- seldom: built when a script first uses one of its names.

local ERRORS_KEPT_MAX = 10

function hf.add_error(id, failure)
    local packed = call('HGET', ERRORS, id)
    local failures = packed and hf.read(packed)
    if packed and not failures then hf.keep_unread('errors', id, packed) end
    failures = failures or {}
    failures[#failures + 1] = failure
    if #failures > ERRORS_KEPT_MAX then table.remove(failures, 1) end
    call('HSET', ERRORS, id, cpack(failures))
end

-- A lease that costs nothing; where a cancel was asked for, the job is cancelled.
function hf.give_back(row, delay)
    if row[CANCEL_REQUESTED] then
        hf.end_lease(row, 'c', {})
    elseif delay and delay > 0 then
        hf.end_lease(row, 's', { delay = delay })
    else
        hf.end_lease(row, 'r', {})
    end
end

-- Death without a lease: expired, or by an operator's word.
function hf.bury_unstarted(row, reason, text)
    local was_in, had_key = hf.leave(row)
    local failure = { at = now, reason = reason, text = text, attempt = row[ATTEMPTS], fence = row[FENCE] }
    hf.add_error(row[ID], failure)
    hf.bury(row, was_in, had_key, reason, failure)
end

function hf.expire(row)
    local terms = row[TERMS]
    if not (terms and terms ~= true and terms[5]) then
        hf.bury_unstarted(row, 'expired', 'text:expired')
        return
    end
    local was_in, had_key = hf.leave(row)
    row[REASON] = 'expired'
    hf.finish(row, was_in, had_key, 'c', RETAIN_SECONDS)
end

-- Unstarted: cancelled. Running: marked, and still running.
function hf.cancel(row)
    if row[STATE] == 'x' then
        row[CANCEL_REQUESTED] = true
        hf.changed[row[ID]] = row
    else
        local was_in, had_key = hf.leave(row)
        hf.finish(row, was_in, had_key, 'c', RETAIN_SECONDS)
    end
end
