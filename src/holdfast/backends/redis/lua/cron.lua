-- cron: cron entries and their ticks.

-- == script tick: write a cron entry and enqueue its jobs in one step; of several concurrent attempts, one succeeds.
-- Takes now, the entry's name, the version the decision was based on, the time before which it is refused or nil, the
-- overlap policy if the previous job is live, that job's id or nil, the entry to store or nil and the one to store if
-- the tick is skipped, each as [whether code declares it], jobs and numbering as in lua/enqueue.lua. ARGV[2], ARGV[3]:
-- both entries; from ARGV[4] on, the jobs' bodies.
-- Returns 1 or 0 for done, 1 or 0 for skipped, the entry as stored ('' for none), letters and ids as enqueue does.
-- Concurrency: a script runs alone, and the version is compared in the step that writes.

if sealed then return hf.refused_sealed() end
local name, version, not_before, overlap, previous = unpack(args, 2, 6)
local entry, entry_if_skipped, jobs, numbering = unpack(args, 7, 10)
local there = call('HGET', ENTRIES, name)
if there and #there < 9 then
    hf.keep_unread('entries', name, there)
    there = false
end
if (there and struct.unpack('>I8', there) or 0) ~= version or (not_before and now < not_before) then
    return { 0, 0, there or '', '', {} }
end
local row = previous and hf.row_of(previous)
local live = row and hf.live_states[row[STATE]]
local skipped = live and overlap == 'skip'
local answers, others = '', {}
if not skipped then
    if live and overlap == 'cancel' then hf.cancel(row) end
    answers, others = hf.enqueue(jobs, 4, numbering)
end
local wanted, written = entry, ARGV[2]
if skipped then wanted, written = entry_if_skipped, ARGV[3] end
if wanted then
    written = spack('>I8I1', version + 1, wanted[1] and 1 or 0) .. written
    call('HSET', ENTRIES, name, written)
else
    written = ''
    call('HDEL', ENTRIES, name)
end
hf.close()
return { 1, skipped and 1 or 0, written, answers, others }

-- == script swap: replace the registry of shards by compare-and-set. Takes now, whether a registry existed; ARGV[2],
-- ARGV[3]: the text that was read, the new text. Returns 1; or 0, with nothing changed, if another process was faster.
-- Concurrency: a script runs alone, so nothing happens between the read and the write.

if call('GET', REGISTRY) ~= (args[2] and ARGV[2]) then return { 0 } end
call('SET', REGISTRY, ARGV[3])
return { 1 }
