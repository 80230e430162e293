-- run_now: a scheduled job is due now and comes into play.
-- Takes now, id. Returns the job's pieces, or a refusal.

if sealed then return hf.refused_sealed() end
local row = hf.row_of(args[2])
if not row then return hf.refused('JobNotFound', { job_id = args[2] }) end
if row[STATE] ~= 's' then
    return hf.refused('StateConflict', { job_id = row[ID], verb = 'run_now', state = row[STATE] })
end
local was_in, had_key = hf.leave(row)
row[DUE_AT] = now
hf.enter_play(row, was_in, had_key)
hf.close()
return hf.shown({ row[ID] })
