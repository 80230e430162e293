-- turns: the one growing number behind seqs, turns and fences. It is never below the clock in microseconds, so it grows
-- even if the store was rolled back to an older copy.
-- Takes the tick that opening read; save_tick writes it, once, at the end.

local tick, first_tick = tonumber(meta[2]) or 0, tonumber(meta[2]) or 0
local micros = math.floor(now * 1000000)

local function next_tick()
    tick = tick + 1
    if tick < micros then tick = micros end
    return tick
end

local function save_tick()
    if tick ~= first_tick then call('HSET', META, 'tick', format('%.0f', tick)) end
end
