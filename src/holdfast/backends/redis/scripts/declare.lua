-- declare: store the queues' rules; the latest word wins. Where a rule changed, its groups are brought to it by refill.
-- Takes now, [name, limit, order]. Returns the queues whose rule changed.
-- needs: opening

local different = {}
for _, rule in ipairs(args[2]) do
    local packed = cpack({ rule[2], rule[3] })
    if call('HGET', RULES, rule[1]) ~= packed then
        if sealed then return hf.refused_sealed() end -- the rules before this one were not new
        call('HSET', RULES, rule[1], packed)
        different[#different + 1] = rule[1]
    end
end
return different
