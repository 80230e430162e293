-- rights: which of the commands a store needs the user may not run. Takes them packed: a name, which is asked about
-- with a key of the store, or a list of words. Returns the names of those that are refused. Safe, because it only asks.

local missing = {}
for _, words in ipairs(cmsgpack.unpack(ARGV[1])) do
    if type(words) ~= 'table' then words = { words, META } end
    local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
    if known and not allowed then missing[#missing + 1] = words[1] end
end
return missing
