-- find: one page of jobs that meet all conditions given, newest first: of the ids given, or of all jobs below a seq.
-- Takes now, ids or nil, the seq to stay below or nil, how many to look at, how many are wanted, and the conditions
-- states, queue, task, group, key, worker, prefix. Returns the seq to go on below ('' at the end) and the jobs' pieces.
-- Never writes.

local ids, below, page, wanted = args[2], args[3], args[4], args[5]
local states, queue, task, group, key, worker, prefix = unpack(args[6], 1, 7)
local at_end = true
if not ids then
    ids = call('ZREVRANGEBYSCORE', SEQS, below and format('(%.0f', below) or '+inf', '-inf', 'LIMIT', 0, page)
    at_end = #ids < page
end
hf.load_rows(ids)
local met, last = {}, ''
for _, id in ipairs(ids) do
    local row = hf.cache[id]
    if not row then
        last = at_end and last or tonumber(call('ZSCORE', SEQS, id) or nil) or last
        local asked = states or queue or task or group or key or worker
        if not asked and (not prefix or sub(id, 1, #prefix) == prefix) then
            met[#met + 1] = id -- shown as one that cannot be read, if it is there at all
        end
    else
        last = row[SEQ]
        if (not states or string.find(states, row[STATE], 1, true)) and (not queue or row[QUEUE] == queue)
            and (not task or row[TASK] == task) and (not group or row[GROUP] == group)
            and (not key or row[KEY] == key) and (not worker or row[WORKER] == worker)
            and (not prefix or sub(id, 1, #prefix) == prefix) then
            met[#met + 1] = id
        end
    end
    if #met == wanted then break end
end
if at_end or last == '' then last = '' else last = format('%.0f', last) end
return { last, hf.shown(met) }
