-- failover: identify the server, and detect that it may lack its latest writes.

-- == script open: create the store if it does not exist, and refuse keys that are not ours. Idempotent.
-- args: (the expected types of all keys, in order)
-- Returns the schema version found before (0: none), or a refusal that names a key of another type.
-- Concurrency: a script runs alone; a second caller finds the store created.

local BODY_USUAL = '4096' -- initial body_max; see part body_limits in lua/claim.lua
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

-- == script rights: which of the commands a store needs the user may not run.
-- args: (the commands, each a list of its words)
-- Returns the positions of those that are refused. Read-only, and any node of a cluster can run it.

local missing = {}
for place, words in ipairs(cmsgpack.unpack(ARGV[1])) do
    local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
    if known and not allowed then missing[#missing + 1] = place end
end
return missing

-- == part lives: identify the server and its current life; a restart or a promotion begins a new life.
-- Takes nothing; reads INFO and the node's ids in its cluster. Never writes. An id the server does not report is false.
-- Built on demand: almost no script needs it.

local function lives()
    local life = { none = string.rep('0', 40) }

    function life.told(section)
        local text = redis.pcall('INFO', section)
        return type(text) == 'string' and text or ''
    end

    -- The id that follows `name` in the text.
    function life.id(text, name) return string.match(text, name .. ':(%x+)') or false end

    function life.in_cluster(name)
        local text = redis.pcall('CLUSTER', name)
        return type(text) == 'string' and text
    end

    -- Ids of process, node and shard; a primary and its replicas share a shard. Outside a cluster the last two are
    -- false.
    function life.server()
        return { life.id(life.told('server'), 'run_id'), life.in_cluster('MYID'), life.in_cluster('MYSHARDID') }
    end

    return life
end

-- == part quiet: how a store notices that it may lack its latest writes, and for how long it then leases nothing.
-- After a restart or a failover the latest claims and renewals may be missing here while their handlers run. For one
-- lease, nothing is leased and no worker is considered dead: by then every worker has renewed and learned which of its
-- leases are gone, or has stopped its handlers because it could not renew.
-- Takes the end of the quiet time (meta.quiet_until) and the life (meta.life) that opening read.
-- Concurrency: the script that notices a new life records it in the same step, so the quiet time is set once.

-- Whether this server instance could have lost writes that the remembered one acknowledged.
function hf.may_lack_writes(life, told, trust_restarts)
    local packed = call('HGET', META, 'server')
    if not packed then return true end
    local was, is, before = hf.read(packed) or {}, life.server(), life.id(told, 'master_replid2')
    -- The same process: either it was a replica meanwhile, or it only got its first replica.
    if is[SERVER_PROCESS] and is[SERVER_PROCESS] == was[SERVER_PROCESS] then return before ~= life.none end
    -- A replica took over: it has its primary's former id, or is another node of the same shard.
    local same_shard = is[SERVER_SHARD] and is[SERVER_SHARD] == was[SERVER_SHARD]
    if before == meta.life or (same_shard and is[SERVER_NODE] ~= was[SERVER_NODE]) then return true end
    -- The slot migrated to a node of another shard: nothing was lost.
    if was[SERVER_SHARD] and is[SERVER_SHARD] and was[SERVER_SHARD] ~= is[SERVER_SHARD] then return false end
    -- It followed a primary we do not remember: the write that recorded that one may be among those lost.
    if before ~= life.none then return true end
    -- The slot migrated, in a cluster that does not report shards.
    if was[SERVER_NODE] and is[SERVER_NODE] and was[SERVER_NODE] ~= is[SERVER_NODE] then return false end
    return not trust_restarts
end

-- Seconds for which the store leases nothing; almost always 0.
function hf.quiet_seconds(trust_restarts)
    local told = redis.pcall('INFO', 'replication')
    if type(told) ~= 'string' then told = '' end
    local ends = tonumber(meta.quiet_until) or 0
    if not (meta.life and string.find(told, 'master_replid:' .. meta.life, 1, true)) then
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
