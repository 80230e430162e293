-- turns: the one growing number behind turns and fences. It is never below the clock in microseconds, so it grows even
-- if the store was rolled back to an older copy. And the number of the latest job.
-- Takes the tick and seq that opening read; save_tick writes them, once, at the end.

local COUNTED_MAX = 9007199254740992 -- above, a number plus 1 may be the same number
hf.tick, hf.seq = tonumber(meta[2]) or 0, tonumber(meta[3])
if not (hf.tick < COUNTED_MAX) then hf.tick = 0 end -- somebody else wrote it: the clock says a better one
if not (hf.seq and hf.seq >= 0 and hf.seq < COUNTED_MAX) then hf.seq = hf.latest_seq() end
hf.first_tick, hf.first_seq = hf.tick, hf.seq
local micros = math.floor(now * 1000000)

function hf.next_tick()
    hf.tick = hf.tick + 1
    if hf.tick < micros then hf.tick = micros end
    return hf.tick
end

function hf.save_tick()
    if hf.tick ~= hf.first_tick or hf.seq ~= hf.first_seq then
        call('HSET', META, 'tick', format('%.0f', hf.tick), 'seq', format('%.0f', hf.seq))
    end
end
