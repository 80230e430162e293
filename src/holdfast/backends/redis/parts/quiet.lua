-- quiet: how a store notices that it may lack its latest writes, and for how long it then gives out nothing.
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
