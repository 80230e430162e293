-- discard: remove a dead letter; its job stays dead, reason "discarded", and may be pruned.
-- Takes now, id. Returns the letter, or a refusal.

if sealed then return hf.refused_sealed() end
local row = hf.row_of(args[2])
local logical = row and hf.held_letter(args[2])
if not logical then return hf.refused('JobNotFound', { job_id = args[2], what = 'dead letter' }) end
if hf.live_states[row[STATE]] then
    return hf.refused('StateConflict', { job_id = row[ID], verb = 'discard', state = row[STATE] })
end
local packed = call('HGET', LETTERS, logical)
hf.drop_letter(logical)
hf.let_go(row, 'discarded')
hf.flush()
hf.save_rows()
return { packed }
