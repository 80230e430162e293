-- open: make the store if it is not there, and refuse what is not ours. Safe twice and by two at once.
-- Takes the expected types of all keys, in order. Returns the version found before (0: none), or a refusal that names a
-- key which holds something else.

local BODY_USUAL = '4096' -- see parts/weighing.lua
local life = lives()
local expected = cmsgpack.unpack(ARGV[1])
local found = {}

local function not_ours(key, kind) return { 'refused', 'not ours', cmsgpack.pack({ key = key, kind = kind }) } end

for i, key in ipairs(KEYS) do
    found[i] = redis.call('TYPE', key).ok
    if found[i] ~= 'none' and found[i] ~= expected[i] then return not_ours(key, found[i]) end
end
local version = tonumber(redis.call('HGET', META, 'schema')) or 0
if version == 0 then
    for i, kind in ipairs(found) do
        if kind ~= 'none' then return not_ours(KEYS[i], kind) end
    end
    local id = life.id(life.told('replication'), 'master_replid')
    redis.call('HSET', META, 'schema', SCHEMA_VERSION, 'life', id or 'untold', 'server', cmsgpack.pack(life.server()),
        'body_max', BODY_USUAL)
end
return { version }
