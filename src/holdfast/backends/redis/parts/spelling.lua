-- spelling: names read back from index members, compared, and what pauses, overrides and buckets are kept under.
-- seldom: built when a script first uses one of its names.

-- The name of an escaped part, without its zero byte.
function hf.plain(part) return (string.gsub(part, '\1[\1\2]', { ['\1\1'] = '\0', ['\1\2'] = '\1' })) end

-- The place that a member of an index by queue and group, or queue and task, begins with; nil where it is not ours.
function hf.place_in(member)
    local queue_end = string.find(member, '\0', 1, true)
    local ends = queue_end and string.find(member, '\0', queue_end + 1, true)
    return ends and sub(member, 1, ends)
end

-- Does a name or place come first in an index? Those go by bytes; Lua's own < goes by the language the server runs in.
function hf.precedes(one, two)
    for i = 1, math.min(#one, #two) do
        local a, b = byte(one, i), byte(two, i)
        if a ~= b then return a < b end
    end
    return #one < #two
end

-- What a pause, an override or a bucket is kept under: of a queue (q), a group (g) or a task (t).
function hf.scope_of(kind, queue, name)
    return kind .. (kind == 't' and name or kind == 'q' and queue or hf.place_of(queue, name))
end
