-- enqueue: the short way of one job without a delay or an expiry, of a task without a rule; where it has a group, of a
-- strict one; where it has a key, one that nobody holds. Takes and returns what scripts/enqueue.lua does.
-- Whatever else it meets it leaves to the script, before anything is written.
-- Safe against a rival: a script runs alone; an id that is there already is refused by the write itself.

local job, used = args[2][1], meta[7]
local step, rest, least_seq, least_tick = unpack(args[3])
local tick, seq = tonumber(meta[2]) or 0, tonumber(meta[3] or 0) or HUGE
local id, task, queue, group, key = job[1], job[2], job[3], job[5] or false, job[6] or false
if #args[2] > 1 or sealed or #ARGV[2] > (tonumber(meta[8]) or HUGE)
    or job[8] or job[9] or job[10] or job[12] or seq < least_seq or tick < least_tick
    or not (seq >= 0 and seq < COUNTED_MAX and tick < COUNTED_MAX)
    or find(queue, ODD_BYTES) or group and find(group, ODD_BYTES) or key and find(task, ODD_BYTES) then break end
if used and (find(used, 'p', 1, true) and call('HLEN', PAUSES) > 0
    or find(used, 'o', 1, true) and call('HLEN', OVERRIDES) > 0
    or find(used, 'g', 1, true) and call('HLEN', GROUP_FLOWS) > 0
    or find(used, 'm', 1, true) and call('ZSCORE', REMEMBERED, id)
    or find(used, 't', 1, true) and call('HEXISTS', TASKS, task) == 1) then break end
local rule = call('HGET', RULES, queue)
local is_sound = true
if rule then is_sound, rule = pcall(cunpack, rule) end
if not is_sound or rule and type(rule) ~= 'table' then break end
if rule and (rule[6] or group and (rule[2] ~= 'strict' or rule[5])) then break end

local key_name = key and 'k' .. queue .. '\0' .. task .. '\0' .. key
if key and call('HEXISTS', KEYED, key_name) == 1 then break end

local waits, place = false, nil
if group then -- ready, if nothing of the group is in play and nothing else of it may be before
    place = queue .. '\0' .. group .. '\0'
    local low, high = '[' .. place, '(' .. place .. '\255'
    local in_play = call('ZLEXCOUNT', PLAY, low, high)
    waits = in_play == 1
    if in_play > 1 then break end
    if not waits and (call('ZLEXCOUNT', WAITING, low, high) > 0 or call('ZCOUNT', DUE, '-inf', now) > 0) then break end
end

seq = seq + 1
if step > 1 then
    seq = math.max(seq, math.floor((now - SEQ_EPOCH) * 1000) * step)
    seq = seq + (rest - seq) % step
end
local state, lane, turn = 'w', 0, false
if not waits then
    tick = math.max(tick + 1, math.floor(now * 1000000))
    state, lane, turn = 'r', group and 1 or 0, math.min(tick, TURN_ZERO)
end
local record = {
    id, state, seq, queue, task, job[4], group, key, turn, lane, 0, 0, 0, job[11], now, now, false, false, false, false,
    false, 0, false, false, false, false, false, false, false, 0, false, key and true,
}
if call('HSETNX', JOBS, id, cpack(record)) == 0 then return { 'k', {} } end
local seq_text, rank = format('%.0f', seq), 2147483648 - job[4]
call('HSET', BODIES, id, ARGV[2])
call('ZADD', SEQS, seq_text, id)
if key then call('HSET', KEYED, key_name, id) end
if waits then
    call('ZADD', WAITING, '0', place .. '1' .. spack('>I4I8', rank, seq) .. id)
    call('HSET', META, 'seq', seq_text)
else
    if group then call('ZADD', PLAY, '0', place .. id) end
    call('ZADD', READY, '0', queue .. '\0' .. lane .. spack('>I4I8I8d', rank, turn + TURN_ZERO, seq, now) .. id)
    call('HSET', META, 'tick', format('%.0f', tick), 'seq', seq_text)
    redis.pcall('XADD', WAKE, 'MAXLEN', '~', HINTS_KEPT, '*', 'q', queue)
end
return { 'c', {} }
