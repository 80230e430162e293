-- bury: an unstarted job dies by an operator's word, with its dead letter.
-- Takes now, id, the reason given. Returns the job's pieces, or a refusal.

if sealed then return hf.refused_sealed() end
local row = hf.row_of(args[2])
if not row then return hf.refused('JobNotFound', { job_id = args[2] }) end
if row[STATE] == 'x' or not hf.live_states[row[STATE]] then
    return hf.refused('StateConflict', { job_id = row[ID], verb = 'bury', state = row[STATE] })
end
hf.bury_unstarted(row, 'bury', args[3] ~= '' and args[3] or 'text:buried')
hf.close()
return hf.shown({ row[ID] })
