-- lives: which server this is, and which of its lives: a restart and a promotion begin a new one.
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
