-- turns: the one growing number behind seqs, turns and fences. It is never below the clock in microseconds, so it grows
-- even if the store was rolled back to an older copy.
-- Takes the tick that opening read; save_tick writes it, once, at the end.

hf.tick, hf.first_tick = tonumber(meta[2]) or 0, tonumber(meta[2]) or 0
local micros = math.floor(now * 1000000)

function hf.next_tick()
    hf.tick = hf.tick + 1
    if hf.tick < micros then hf.tick = micros end
    return hf.tick
end

function hf.save_tick()
    if hf.tick ~= hf.first_tick then call('HSET', META, 'tick', format('%.0f', hf.tick)) end
end
