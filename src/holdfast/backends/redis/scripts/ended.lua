-- ended: of these ids, the jobs that are finished, and those that nobody knows. Takes now, ids. Never writes.
-- Returns the pieces of the finished ones, then the unknown ids.

local ids, finished, unknown = args[2], {}, {}
for from = 1, #ids, ARGUMENTS_MAX do
    local upto = math.min(#ids, from + ARGUMENTS_MAX - 1)
    local found = call('HMGET', JOBS, unpack(ids, from, upto))
    for i = from, upto do
        local packed = found[i - from + 1]
        if not packed then
            unknown[#unknown + 1] = ids[i]
        else
            -- the state is the second field, behind the three bytes that say how many they are
            local _, _, _, state = pcall(cmsgpack.unpack_limit, packed, 2, 3)
            if state == 'o' or state == 'c' or state == 'd' then finished[#finished + 1] = ids[i] end
        end
    end
end
return { hf.shown(finished), unknown }
