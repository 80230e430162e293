-- rights: which of the commands a store needs the user may not run. Takes them packed, each a list of its words.
-- Returns the places of those that are refused. Safe, because it only asks. Any node of a cluster answers it.

local missing = {}
for place, words in ipairs(cmsgpack.unpack(ARGV[1])) do
    local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
    if known and not allowed then missing[#missing + 1] = place end
end
return missing
