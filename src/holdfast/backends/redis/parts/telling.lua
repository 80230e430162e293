-- telling: a short hint for sleepers, of queues in which there may be work.

local HINTS_KEPT = 64

function hf.tell_sleepers()
    if next(hf.put_off) then -- what is now due before all others may be sooner than sleepers reckon with
        local first = call('ZRANGE', DUE, 0, 0)[1]
        if first and hf.put_off[first] then hf.stirred[hf.put_off[first]] = true end
    end
    local hint, n = {}, 0
    for queue in pairs(hf.stirred) do
        hint[n + 1], hint[n + 2] = 'q', queue
        n = n + 2
    end
    if n > 0 then -- a hint that is refused is no reason to fail what was done
        redis.pcall('XADD', WAKE, 'MAXLEN', '~', HINTS_KEPT, '*', unpack(hint, 1, math.min(n, ARGUMENTS_MAX)))
    end
end
