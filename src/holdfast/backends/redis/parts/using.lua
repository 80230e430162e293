-- using: which of the things that few stores have are there, and that one is there now.
-- seldom: built when a script first uses one of its names.

function hf.count_of(kind)
    if kind == 'm' then return call('ZCARD', REMEMBERED) end
    local key = kind == 'p' and PAUSES or kind == 'o' and OVERRIDES or kind == 't' and TASKS or kind == 'f' and FLOWS
        or kind == 'g' and GROUP_FLOWS or kind == 'r' and CHANGES or LETTERS
    return call('HLEN', key)
end

-- Whoever stores one says so in the same step. It stays said when the last one is gone, but for changes.
function hf.use(kind)
    hf.any_memo[kind] = true
    if not (meta[7] and string.find(meta[7], kind, 1, true)) then
        meta[7] = (meta[7] or '') .. kind
        call('HSET', META, 'used', meta[7])
    end
end

function hf.no_longer_use(kind)
    hf.any_memo[kind] = false
    meta[7] = string.gsub(meta[7], kind, '')
    call('HSET', META, 'used', meta[7])
end
