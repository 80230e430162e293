-- counting: jobs by queue and state, counted off the indexes by jumping from queue to queue. Never writes.
-- What is not ours in an index is passed over.
-- seldom: built when a script first uses one of its names.

local QUEUES_SEEN_MAX = 20000

-- Calls each(prefix, queue) for every queue that has members in this index behind `before`.
function hf.each_queue(key, before, each)
    local from = '[' .. before
    for _ = 1, QUEUES_SEEN_MAX do
        local first = call('ZRANGEBYLEX', key, from, '(' .. before .. '\255', 'LIMIT', 0, 1)[1]
        if not first then return end
        local ends = string.find(first, '\0', #before + 1, true)
        if ends then
            local prefix = sub(first, 1, ends)
            each(prefix, hf.plain(sub(prefix, #before + 1, -2)))
            from = '[' .. sub(prefix, 1, -2) .. '\1'
        else
            from = '(' .. first -- nothing of ours
        end
    end
end

function hf.counted()
    local counts = {}
    local function add(queue, state, number)
        counts[queue] = counts[queue] or {}
        counts[queue][state] = (counts[queue][state] or 0) + number
    end
    local function of_index(key, before, state)
        hf.each_queue(key, before, function(prefix, queue)
            add(queue, state, call('ZLEXCOUNT', key, '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1'))
        end)
    end
    of_index(READY, '', 'r')
    of_index(APART, '', 'r')
    of_index(WAITING, '', 'w')
    of_index(SCHEDULED, '', 's')
    for _, state in ipairs({ 'o', 'c', 'd' }) do of_index(FINISHED, state, state) end
    hf.each_running(function(queue) add(queue, 'x', 1) end)
    return counts
end

-- Calls each(queue, id) for every running job: as many as all workers have slots.
function hf.each_running(each)
    for _, member in ipairs(call('ZRANGE', RUNNING, 0, -1)) do
        local seq_end = (string.find(member, '\0', 1, true) or #member) + 16
        local ends = string.find(member, '\0', seq_end + 1, true)
        if ends then each(hf.plain(sub(member, seq_end + 1, ends - 1)), sub(member, ends + 1)) end
    end
end
