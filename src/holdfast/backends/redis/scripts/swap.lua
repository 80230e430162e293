-- swap: put a new registry of shards in the place of the one that was read. Takes now, whether there was one; ARGV[2],
-- ARGV[3]: the text that was read, the new text. Returns 1; or 0, and nothing changed, where somebody else was quicker.
-- Safe against a rival because nobody else runs between the look and the write.

if call('GET', REGISTRY) ~= (args[2] and ARGV[2]) then return { 0 } end
call('SET', REGISTRY, ARGV[3])
return { 1 }
