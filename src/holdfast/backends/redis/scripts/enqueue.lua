-- enqueue: store new jobs, all in one step.
-- Takes now, jobs and numbering as parts/producing.lua has them; from ARGV[2] on, the jobs' bodies.
-- Returns one letter per job (c created, k kept, r replaced) and the ids answered in place of those given, or a
-- refusal.
-- Safe against a rival: a script runs alone; duplicates are refused before anything is written. Refused by a server
-- whose memory is full.

if sealed then return hf.refused_sealed() end
local answers, others = hf.enqueue(args[2], 2, args[3])
if not answers then return others end
hf.close()
return { answers, others }
