-- export: a piece of the store in a stable order: jobs by seq, letters by the id of their job, or all rules. Bounded.
-- Takes now, the part, the place to go on after, how many; for letters ARGV[2] is that place. Never writes.
-- Returns the pieces of jobs and their packed log lines; or packed letters; or the tick, then rules of queues and
-- tasks, overrides, buckets of queues and tasks and of groups, entries and pauses as they are stored.

local part, after, limit = args[2], args[3], args[4]
if part == 'rules' then
    local all = { meta[2] or '0' }
    for i, key in ipairs({ RULES, TASKS, OVERRIDES, FLOWS, GROUP_FLOWS, ENTRIES, PAUSES }) do
        all[i + 1] = call('HGETALL', key)
    end
    return all
end
if part == 'letters' then
    local low = ARGV[2] == '' and '-' or '(' .. sub(hf.escape(ARGV[2]), 1, -2) .. '\1'
    local letters = {}
    for i, member in ipairs(call('ZRANGEBYLEX', HOLDERS, low, '+', 'LIMIT', 0, limit)) do
        letters[i] = call('HGET', LETTERS, sub(member, string.find(member, '\0', 1, true) + 1))
    end
    return letters
end
local ids = call('ZRANGEBYSCORE', SEQS, format('(%.0f', after), '+inf', 'LIMIT', 0, limit)
local lines = {}
for i, id in ipairs(ids) do lines[i] = call('HGET', LOGS, id) end
return { hf.shown(ids), lines }
