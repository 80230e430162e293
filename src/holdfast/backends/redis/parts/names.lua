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

-- Does a name or place come first in an index? Those go by bytes; Lua's own < goes by the language the server runs in.
function hf.precedes(one, two)
    for i = 1, math.min(#one, #two) do
        local a, b = byte(one, i), byte(two, i)
        if a ~= b then return a < b end
    end
    return #one < #two
end

-- A group's place: the beginning of all its members in waiting, scheduled and play.
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

-- What a pause is kept under: of a queue (q), a group (g) or a task (t).
function hf.pause_name(kind, queue, name)
    return kind .. (kind == 't' and name or kind == 'q' and queue or hf.place_of(queue, name))
end

-- The logical job: (queue, task, key), or the id where there is no key.
function hf.logical_of(row)
    if row[KEY] then return 'k' .. hf.escape(row[QUEUE]) .. hf.escape(row[TASK]) .. row[KEY] end
    return 'i' .. row[ID]
end
