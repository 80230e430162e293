-- closing: how every script that changed something ends: groups refilled, everything written, sleepers told.
-- Nothing written here can fail: the types of all keys were checked when the store was opened.

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
    if n > 0 then call('XADD', WAKE, 'MAXLEN', '~', HINTS_KEPT, '*', unpack(hint, 1, math.min(n, ARGUMENTS_MAX))) end
end

-- Answers the packed records that were written, by id.
function hf.close()
    hf.refill_touched()
    hf.flush()
    hf.save_live()
    local packed = hf.save_rows()
    hf.save_tick()
    hf.tell_sleepers()
    return packed
end
