-- swap: put a new registry of shards in the place of the one that was read. Takes whether there was one; pieces: the
-- text that was read, the new text. Returns 1, or 0 where somebody else was quicker: then nothing was changed.
-- Safe against a rival because nobody else runs between the look and the write.

local there = redis.call('GET', REGISTRY)
local expected = cmsgpack.unpack(ARGV[1])[1] and ARGV[2]
if there ~= expected then return { 0 } end
redis.call('SET', REGISTRY, ARGV[3])
return { 1 }
