-- numbering: the number of the latest job, from the jobs themselves.
-- seldom: built when a script first uses one of its names.

function hf.latest_seq()
    local seq = tonumber(call('ZREVRANGEBYSCORE', SEQS, COUNTED_MAX - 1, '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2])
    return seq or 0
end
