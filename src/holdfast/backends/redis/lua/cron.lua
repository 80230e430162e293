-- cron: cron entries and their ticks.

-- == script tick: write a cron entry and enqueue its jobs in one step; of several concurrent attempts, one succeeds.
-- args: now, name, version, not_before, overlap, previous, entry, entry_if_skipped, jobs, numbering
-- raw: entry, entry_if_skipped, bodies...
-- `version` is the one the decision was based on; `not_before` or nil refuses an early tick; `overlap` is the policy if
-- the job `previous` (an id or nil) is live. Both entries are [whether code declares it], or nil to remove the entry;
-- their texts are raw. Jobs and numbering as in script enqueue.
-- Returns 1 or 0 for done, 1 or 0 for skipped, the entry as stored ('' for none), letters and ids as enqueue does.
-- Concurrency: a script runs alone, and the version is compared in the step that writes.

local ENTRY_HEAD_BYTES = 9 -- before an entry's text: version, and whether code declares it
if sealed then return hf.refused_sealed() end
local name, version, not_before = args.name, args.version, args.not_before
local there = call('HGET', ENTRIES, name)
if there and #there < ENTRY_HEAD_BYTES then
    hf.keep_unread('entries', name, there)
    there = false
end
if (there and struct.unpack('>I8', there) or 0) ~= version or (not_before and now < not_before) then
    return { 0, 0, there or '', '', {} }
end
local row = args.previous and hf.row_of(args.previous)
local live = row and hf.live_states[row[STATE]]
local skipped = live and args.overlap == 'skip'
local answers, others = '', {}
if not skipped then
    if live and args.overlap == 'cancel' then hf.cancel(row, 'cron ' .. name) end
    answers, others = hf.enqueue(args.jobs, PLACE.bodies, args.numbering)
end
local wanted, written = args.entry, ARGV.entry
if skipped then wanted, written = args.entry_if_skipped, ARGV.entry_if_skipped end
if wanted then
    written = spack('>I8I1', version + 1, wanted[SET_VALUE] and 1 or 0) .. written
    call('HSET', ENTRIES, name, written)
else
    written = ''
    call('HDEL', ENTRIES, name)
end
hf.close()
return { 1, skipped and 1 or 0, written, answers, others }

-- == script swap: replace the registry of shards by compare-and-set.
-- args: now, existed
-- raw: before, after
-- `existed`: whether there was a registry; then `before` is the text that was read.
-- Returns 1; or 0, with nothing changed, if another process was faster.
-- Concurrency: a script runs alone, so nothing happens between the read and the write.

if call('GET', REGISTRY) ~= (args.existed and ARGV.before) then return { 0 } end
call('SET', REGISTRY, ARGV.after)
return { 1 }
