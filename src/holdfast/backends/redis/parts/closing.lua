-- closing: how every script that changed something ends: groups refilled, everything written, sleepers told.
-- Nothing written here can fail: the types of all keys were checked when the store was opened.


-- Answers the packed records that were written, by id.
function hf.close()
    hf.refill_touched()
    hf.flush()
    if next(hf.ended_of) or next(hf.begun_of) then hf.save_busy() end
    if next(hf.key_changes) then hf.save_keys() end
    local packed = hf.save_rows()
    hf.save_tick()
    hf.tell_sleepers()
    return packed
end
