-- opening: the words every script uses, its arguments, the time, and the check that this is a store of this version.
-- Everything parts share is a field of ONE table: lua.py tells why.
-- Takes ARGV[1]: packed [now or nil, …]. Reads TIME once. Returns early with a refusal where the store is another's.

local call, cpack, cunpack, spack = redis.call, cmsgpack.pack, cmsgpack.unpack, struct.pack
local sub, byte, find, format, concat = string.sub, string.byte, string.find, string.format, table.concat
local hf = {}
local ARGUMENTS_MAX = 2000 -- of one call: Lua's stack holds some thousands; even, for field and value

local args = cunpack(ARGV[1])
local given = args[1]
local now = given
if not now then
    local time = call('TIME')
    now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local meta = call('HMGET', META, 'schema', 'tick', 'seq', 'sealed', 'quiet_until', 'life', 'used', 'body_max')
if meta[1] ~= SCHEMA_VERSION then return { 'refused', 'SchemaMismatch', cpack({ found = tonumber(meta[1]) or 0 }) } end

-- The seal's text while it closes the store, else false.
local sealed = meta[4]
