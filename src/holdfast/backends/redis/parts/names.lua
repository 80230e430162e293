-- names: queue, group, task and key as parts of index members, so that no name can reach into its neighbour's range.
-- A part ends with a zero byte; a zero or one byte inside a name is escaped in a way that keeps the order of names.

hf.escaped, hf.place_memo, hf.queue_at = {}, {}, {}

function hf.escape(name)
    local safe = hf.escaped[name]
    if not safe then
        safe = name
        if string.find(name, '[%z\1]') then safe = string.gsub(name, '[%z\1]', { ['\0'] = '\1\1', ['\1'] = '\1\2' }) end
        safe = safe .. '\0'
        hf.escaped[name] = safe
    end
    return safe
end

-- A group's place: the beginning of all its members in waiting, scheduled, play and staged. Of a task apart: in apart.
function hf.place_of(queue, group)
    local of_queue = hf.place_memo[queue]
    if not of_queue then
        of_queue = {}
        hf.place_memo[queue] = of_queue
    end
    local place = of_queue[group]
    if not place then
        place = hf.escape(queue) .. (group and hf.escape(group) or '\1\0')
        of_queue[group] = place
        hf.queue_at[place] = queue
    end
    return place
end

-- The logical job: (queue, task, key), or the id where there is no key.
function hf.logical_of(row)
    if row[KEY] then return 'k' .. hf.escape(row[QUEUE]) .. hf.escape(row[TASK]) .. row[KEY] end
    return 'i' .. row[ID]
end
