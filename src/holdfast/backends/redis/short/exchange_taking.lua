-- exchange_taking: which jobs the short way leases. A strict group's next job goes from waiting to running at once
-- where the claim takes it anyway.
-- Order and shares are those of parts/claims.lua. Where freed jobs are not the last in their lane it is left to that.

-- The next jobs of groups become ready, in this order.
local tick, micros, fresh_of, stirred = tonumber(meta[2]) or 0, math.floor(now * 1000000), {}, {}
if not (tick < COUNTED_MAX) then break end
if f > 0 and not pcall(open_rows, call('HMGET', JOBS, unpack(fresh)), fresh, f) then break end
for i = 1, f do
    local row = rows[fresh[i]]
    if not row or row[STATE] ~= 'w' then
        plain = false
        break
    end
    local queue = row[QUEUE]
    local those = fresh_of[queue] or {}
    local before = those[#those]
    if not row[TURN] then
        tick = tick + 1
        if tick < micros then tick = micros end
        row[TURN] = math.min(tick, TURN_ZERO)
    end
    row[STATE], row[LANE] = 'r', 1
    plain = plain and not (before and (before[PRIORITY] < row[PRIORITY]
        or before[PRIORITY] == row[PRIORITY] and before[TURN] >= row[TURN]))
    those[#those + 1], fresh_of[queue], stirred[queue] = row, those, true
end

if not plain then break end

-- Which jobs are leased: those of both lanes, 0 without a group and 1 with one, share as hf.take lets them.
local leased, taken, off_ready, new, unread = 0, {}, {}, {}, 0
for q = 1, #queues do
    local queue = queues[q]
    local wanted, first = math.min(most - leased, by_queue[queue] or most), number % 2
    if wanted > 0 then
        local low, high, upper = '[' .. queue .. '\0000', '[' .. queue .. '\0001', '(' .. queue .. '\0002'
        local at, half, loose = #queue + 2, math.ceil(wanted / 2), 0
        local found = call('ZRANGEBYLEX', READY, low, upper, 'LIMIT', '0', wanted)
        while loose < #found and byte(found[loose + 1], at) == 48 do loose = loose + 1 end
        local behind, before, grouped = found, loose, #found - loose -- lane 1: so many of a list, behind the first ones
        local needed = first == 1 and half or wanted - half
        if #found == wanted and grouped < needed then
            behind, before = call('ZRANGEBYLEX', READY, high, upper, 'LIMIT', '0', needed), 0
            grouped = #behind
        end
        local freed = fresh_of[queue] or {}
        if grouped > 0 and #freed > 0 then -- they come after those that were ready?
            local last, next_rank = behind[before + grouped], 2147483648 - freed[1][PRIORITY]
            if #last < at + 12 then -- nothing of ours
                plain = false
            else
                local rank, turn = struct.unpack('>I4I8', last, at + 1)
                plain = plain and (rank < next_rank or rank == next_rank and turn < freed[1][TURN] + TURN_ZERO)
            end
        end
        local of_loose, of_grouped, left = 0, 0, wanted
        for step = 0, 2 do
            local is_loose = (first + step) % 2 == 0
            local there = is_loose and loose - of_loose or grouped + #freed - of_grouped
            local share = math.min(step == 0 and half or left, there)
            left = left - share
            for _ = 1, share do
                local id
                if is_loose then
                    of_loose = of_loose + 1
                    id = sub(found[of_loose], at + 29)
                else
                    of_grouped = of_grouped + 1
                    local of_freed = of_grouped - grouped
                    id = of_freed > 0 and freed[of_freed][ID] or sub(behind[before + of_grouped], at + 29)
                end
                leased = leased + 1
                taken[leased] = id
                if not rows[id] then
                    unread = unread + 1
                    new[unread] = id
                end
            end
        end
        of_grouped = math.min(of_grouped, grouped)
        if of_loose > 0 then off_ready[#off_ready + 1] = { found[1], found[of_loose] } end
        if of_grouped > 0 then off_ready[#off_ready + 1] = { behind[before + 1], behind[before + of_grouped] } end
        if left > 0 then stirred[queue] = nil end -- nothing claimable is left there to tell others of
    end
end
if leased > 1 and leased * (tonumber(meta[8]) or HUGE) > request[8] then -- together they may be too long
    local bytes = 0
    for i = 1, leased do bytes = bytes + call('HSTRLEN', BODIES, taken[i]) - BODY_HEAD end
    if bytes > request[8] then break end
end
if unread > 0 and not pcall(open_rows, call('HMGET', JOBS, unpack(new)), new, unread) then break end
for i = 1, leased do
    local row = rows[taken[i]]
    if not row or row[STATE] ~= 'r' or row[LANE] > 7 or row[KEY] and find(row[TASK], ODD_BYTES) then
        plain = false
        break
    end
    row[STATE] = 'x' -- at once: a second entry that leads to it is not plain
end
if plain and used and find(used, 't', 1, true) then -- tasks that say nothing have no rule
    local tasks = {}
    for i = 1, s do tasks[i] = settled[i][TASK] end
    for i = 1, f do tasks[s + i] = rows[fresh[i]][TASK] end
    for i = 1, leased do tasks[s + f + i] = rows[taken[i]][TASK] end
    tasks = #tasks > 0 and call('HMGET', TASKS, unpack(tasks)) or tasks
    for i = 1, #tasks do plain = plain and not tasks[i] end
end
if not plain then break end
