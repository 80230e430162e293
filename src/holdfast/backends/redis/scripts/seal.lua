-- seal: put a seal in the place of exactly the one that was read, or take it away.
-- Takes now, whether there was one, whether there will be one, whether that closes the store, whether the store must be
-- empty for it; ARGV[2], ARGV[3]: both texts.
-- Returns 1; 0 where another seal is there; -1 and how many jobs, letters, overrides, pauses and entries not declared
-- by code there are, where it is not empty. Then nothing was changed.
-- Safe against a rival: a script runs alone, so nobody is in the middle of a step when it closes the store.

local had, has, closes, must_be_empty = args[2], args[3], args[4], args[5]
if call('HGET', META, 'seal') ~= (had and ARGV[2]) then return { 0 } end
if must_be_empty then
    local found, total = { -1 }, 0
    for _, key in ipairs({ JOBS, LETTERS, OVERRIDES, PAUSES }) do
        found[#found + 1] = call('HLEN', key)
        total = total + found[#found]
    end
    local made = 0
    for _, entry in ipairs(call('HVALS', ENTRIES)) do
        if byte(entry, 9) == 0 then made = made + 1 end
    end
    found[#found + 1] = made
    if total + made > 0 then return found end
    call('DEL', RULES, TASKS, ENTRIES, FLOWS, GROUP_FLOWS, WAKING, LAPSING)
end
call('HDEL', META, 'seal', 'sealed')
if has then call('HSET', META, 'seal', ARGV[3]) end
if closes then call('HSET', META, 'sealed', ARGV[3]) end
return { 1 }
