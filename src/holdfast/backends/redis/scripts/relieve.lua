-- relieve: while the server's memory is short, finished jobs give way before their retention ends, those that would be
-- pruned first before others. Their ids are remembered for as long as those of all finished jobs.
-- Takes now, how many to look at, whether the server has just refused a call for want of memory. Returns how many jobs
-- went, and 1 where there may be more to go.
-- Never takes a job finished less than RESULT_SECONDS ago: somebody may wait for its result. Nor one whose key's window
-- has not passed, nor a dead job that holds its letter: those are not in the index this reads.
-- Safe against a rival: a script runs alone.

local RESULT_SECONDS, SHORT_SHARE = 10, 0.9
if sealed then return hf.refused_sealed() end
local page, is_refused = args[2], args[3]

local function is_short()
    local told = redis.pcall('INFO', 'memory')
    if type(told) ~= 'string' then return false end
    local used, most = string.match(told, 'used_memory:(%d+)'), string.match(told, 'maxmemory:(%d+)')
    return used and most and tonumber(most) > 0 and tonumber(used) > SHORT_SHARE * tonumber(most)
end

if not is_refused and not is_short() then return { 0, 0 } end
local found, ids = call('ZRANGE', PRUNABLE, 0, page - 1), {}
for _, row in ipairs(hf.rows_at('prunable', PRUNABLE, found, found, 'ocd')) do
    local ended = row[FINISHED_AT]
    if not row[PRUNE_AT] then
        hf.set_aside('prunable', PRUNABLE, row[ID], row) -- a dead job that holds its letter
    elseif ended <= now - RESULT_SECONDS and hf.is_past_window(row) then
        ids[#ids + 1] = row[ID]
        if ended > now - REMEMBER_SECONDS_MIN then
            hf.put(REMEMBERED, row[ID], hf.score_of(ended + REMEMBER_SECONDS_MIN))
            hf.use('m')
        end
    end
end
hf.remove_rows(ids)
return { #ids, #ids == page and 1 or 0 }
