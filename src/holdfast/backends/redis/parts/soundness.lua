-- soundness: has what was packed values of the kinds that it should? What has not says nothing, as if it were not
-- there, or nothing in that place. flaws() lists it. Records of jobs are checked where they are opened.
-- seldom: built when a script first uses one of its names.

local TIME_MAX = 1e15 -- later than any that makes sense

function hf.is_number(value) return type(value) == 'number' and value >= -1e300 end -- which what is no number is not

function hf.sound_limit(limit) return hf.is_number(limit) and limit >= 0 and limit % 1 == 0 and limit end

-- A rate is {count, seconds, burst or false}.
function hf.sound_rate(rate)
    return type(rate) == 'table' and hf.is_number(rate[1]) and rate[1] > 0 and hf.is_number(rate[2]) and rate[2] > 0
        and rate[2] < TIME_MAX and (not rate[3] or hf.is_number(rate[3]) and rate[3] >= 1)
        and { rate[1], rate[2], rate[3] or false }
end

function hf.mend_rule(rule)
    rule[3], rule[4], rule[5] = hf.sound_limit(rule[3]), hf.sound_rate(rule[4]), hf.sound_rate(rule[5])
    rule[6] = hf.is_number(rule[6]) and rule[6] < TIME_MAX and rule[6]
end

-- What an operator said; false where it cannot be read.
function hf.sound_override(said)
    return said and { hf.sound_limit(said[1]), hf.sound_rate(said[2]), said[3] == true }
end

function hf.sound_task(rule)
    return rule and { hf.sound_limit(rule[1]), hf.sound_rate(rule[2]), rule[3] == true, hf.sound_limit(rule[4]) }
end

local function is_time(value) return type(value) == 'number' and value >= -TIME_MAX and value < TIME_MAX end

-- A bucket is {spent_until, shut_until, wakes_at or false}.
function hf.sound_flow(flow)
    return flow and is_time(flow[1]) and is_time(flow[2]) and (not flow[3] or is_time(flow[3])) and flow
end

function hf.sound_letter(letter)
    return letter and type(letter.id) == 'string' and type(letter.task) == 'string' and type(letter.args) == 'string'
        and hf.is_number(letter.failed_at) and hf.is_number(letter.first_failed_at)
        and hf.is_number(letter.failure_count) and hf.is_number(letter.cycles) and type(letter.history) == 'table'
        and (letter.error == nil or type(letter.error) == 'table')
        and (letter.revive_at == nil or hf.is_number(letter.revive_at)) and letter
end

function hf.sound_revival(revival)
    return revival and hf.is_number(revival.cycles) and hf.is_number(revival.after) and hf.is_number(revival.factor)
        and hf.is_number(revival.cap) and revival
end

-- A worker's last numbered call and the answers given.
function hf.sound_call(last)
    return last and hf.is_number(last[1]) and last[1] < COUNTED_MAX and type(last[2]) == 'string' and last
end
