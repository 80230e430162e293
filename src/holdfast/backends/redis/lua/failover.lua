-- failover: which server this is, and whether it may lack its latest writes.

-- == script open: make the store if it is not there, and refuse what is not ours. Safe twice and by two at once.
-- Takes the expected types of all keys, in order. Returns the version found before (0: none), or a refusal that names a
-- key which holds something else.

local BODY_USUAL = '4096' -- see lua/claim.lua
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

-- == script rights: which of the commands a store needs the user may not run. Takes them packed, each a list of its
-- words. Returns the places of those that are refused. Safe, because it only asks. Any node of a cluster answers it.

local missing = {}
for place, words in ipairs(cmsgpack.unpack(ARGV[1])) do
    local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
    if known and not allowed then missing[#missing + 1] = place end
end
return missing

-- == part lives: which server this is, and which of its lives: a restart and a promotion begin a new one.
-- Takes nothing, reads INFO and the names a node has in its cluster. Never writes. A server that does not tell: false.
-- Made when it is asked for: almost no script has to know.

local function lives()
    local life = { none = string.rep('0', 40) }

    function life.told(section)
        local text = redis.pcall('INFO', section)
        return type(text) == 'string' and text or ''
    end

    -- The id that `name` has in what was told.
    function life.id(text, name) return string.match(text, name .. ':(%x+)') or false end

    function life.in_cluster(name)
        local text = redis.pcall('CLUSTER', name)
        return type(text) == 'string' and text
    end

    -- Process, node and shard; a primary and its replicas are of one shard. Node and shard are false outside a cluster.
    function life.server()
        return { life.id(life.told('server'), 'run_id'), life.in_cluster('MYID'), life.in_cluster('MYSHARDID') }
    end

    return life
end

-- == part quiet: how a store notices that it may lack its latest writes, and for how long it then gives out nothing.
-- After a restart or a failover the latest claims and renewals may be missing here while their handlers run. Nothing is
-- given out and nobody is taken for dead for one lease: every worker has by then renewed, and was told which of its
-- leases are gone, or has stopped its handlers because it could not.
-- Takes the end of the quiet time (meta[5]) and the life (meta[6]) that opening read.
-- Safe against a rival: who notices a new life remembers it in the same step, so the quiet time is set once.

-- Is a life other than the one remembered one that may lack writes?
function hf.may_lack_writes(life, told, trust_restarts)
    local packed = call('HGET', META, 'server')
    if not packed then return true end
    local was, is, before = hf.read(packed) or {}, life.server(), life.id(told, 'master_replid2')
    -- The same process: it served another one meanwhile, or it only got its first replica.
    if is[1] and is[1] == was[1] then return before ~= life.none end
    -- A replica took over: it had its primary's id, or is another node of the shard.
    if before == meta[6] or (is[3] and is[3] == was[3] and is[2] ~= was[2]) then return true end
    -- The slot moved to a node of another shard: nobody died.
    if was[3] and is[3] and was[3] ~= is[3] then return false end
    -- It had the id of one that is not remembered: whoever noted that id may be among what was lost.
    if before ~= life.none then return true end
    -- The slot moved, in a cluster that does not tell its shards.
    if was[2] and is[2] and was[2] ~= is[2] then return false end
    return not trust_restarts
end

-- Seconds for which the store gives out nothing; 0 almost always.
function hf.quiet_seconds(trust_restarts)
    local told = redis.pcall('INFO', 'replication')
    if type(told) ~= 'string' then told = '' end
    local ends = tonumber(meta[5]) or 0
    if not (meta[6] and string.find(told, 'master_replid:' .. meta[6], 1, true)) then
        local life = lives()
        local new = life.id(told, 'master_replid')
        if new then
            if hf.may_lack_writes(life, told, trust_restarts) then ends = math.huge end
            call('HSET', META, 'life', new, 'server', cpack(life.server()))
        end
    end
    local left = ends - now
    if left <= 0 then return 0 end
    local longest = hf.lease_max()
    if left > longest then -- it begins now, or the server's clock was set back
        left = longest
        call('HSET', META, 'quiet_until', format('%.17g', now + longest))
    end
    return left
end
