-- exchange_writing: what the short way settled and leased is written; each index in one call. The members are those of
-- parts/index.lua.

local nonce = args[5]
local running, expiring, pieces, records, r, ready = {}, {}, {}, {}, 0, {}
local bodies = leased > 0 and call('HMGET', BODIES, unpack(taken))
for i = 1, s do
    r = r + 2
    records[r - 1], records[r] = settled[i][ID], cpack(settled[i])
end
for i = 1, leased do
    local row = rows[taken[i]]
    local id, queue, task = row[ID], row[QUEUE], row[TASK]
    tick = tick + 1
    if tick < micros then tick = micros end
    row[FENCE], row[TOKEN] = tick, nonce .. format('%x', tick)
    row[WORKER], row[CLAIM_CALL], row[STARTED_AT], row[BEGUN] = worker, number, now, false
    local terms = row[TERMS]
    if terms and terms ~= true and terms[2] and terms[6] and not terms[3] then -- its key is free once it starts
        off_keyed[#off_keyed + 1] = (terms[1] and 'g' or 'k' .. queue .. '\0') .. task .. '\0' .. row[KEY]
        terms[6] = false
    end
    if row[EXPIRES_AT] then expiring[#expiring + 1] = id end
    running[2 * i - 1] = '0'
    running[2 * i] = worker .. '\0' .. spack('>I8I8', tick, row[SEQ]) .. queue .. '\0' .. id
    of_queue[queue], of_task[task] = (of_queue[queue] or 0) + 1, (of_task[task] or 0) + 1
    local record = cpack(row)
    r = r + 2
    records[r - 1], records[r] = id, record
    pieces[2 * i - 1], pieces[2 * i] = record, bodies[i]
end
local play = {}
for i = 1, f do
    local id = fresh[i]
    local row = rows[id]
    play[2 * i - 1], play[2 * i] = '0', place_of[i] .. id
    if row[STATE] == 'r' then
        local rank = spack('>I4I8I8d', 2147483648 - row[PRIORITY], row[TURN] + TURN_ZERO, row[SEQ], row[DUE_AT])
        ready[#ready + 1], ready[#ready + 2] = '0', row[QUEUE] .. '\0001' .. rank .. id
        r = r + 2
        records[r - 1], records[r] = id, cpack(row)
    end
end
for _, range in ipairs(off_ready) do call('ZREMRANGEBYLEX', READY, '[' .. range[1], '[' .. range[2]) end
if s > 0 then
    call('ZREM', RUNNING, unpack(off_running))
    call('ZADD', FINISHED, unpack(finished))
    call('ZADD', PRUNABLE, unpack(prunable))
end
if #off_play > 0 then call('ZREM', PLAY, unpack(off_play)) end
if f > 0 then
    call('ZREM', WAITING, unpack(off_waiting))
    call('ZADD', PLAY, unpack(play))
end
if #ready > 0 then call('ZADD', READY, unpack(ready)) end
if leased > 0 then call('ZADD', RUNNING, unpack(running)) end
if #expiring > 0 then call('ZREM', EXPIRING, unpack(expiring)) end
if #off_keyed > 0 then call('HDEL', KEYED, unpack(off_keyed)) end
if #values > 0 then call('HSET', VALUES, unpack(values)) end
if r > 0 then call('HSET', JOBS, unpack(records)) end
for kind, changes in pairs({ q = of_queue, t = of_task }) do
    for name, change in pairs(changes) do
        local left = change == 0 or redis.pcall('HINCRBY', BUSY, kind .. name, change)
        if left == 0 or type(left) == 'table' then call('HDEL', BUSY, kind .. name) end -- a table: it was no number
    end
end
if leased + f > 0 then call('HSET', META, 'tick', format('%.0f', tick)) end
answers = concat(answers)
call('HSET', CALLS, worker, cpack({ number, answers }))
local hint = {}
for queue in pairs(stirred) do hint[#hint + 1], hint[#hint + 2] = 'q', queue end
if #hint > 0 then redis.pcall('XADD', WAKE, 'MAXLEN', '~', HINTS_KEPT, '*', unpack(hint)) end
return { 2, answers, '\144', pieces, '', '0' }
