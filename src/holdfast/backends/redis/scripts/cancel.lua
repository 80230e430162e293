-- cancel: an unstarted job is cancelled, a running one marked; a cancelled one is left as it is.
-- Takes now, id. Returns the job's pieces, or a refusal.

local row = hf.row_of(args[2])
if not row then return hf.refused('JobNotFound', { job_id = args[2] }) end
local state = row[STATE]
if hf.live_states[state] then
    if sealed and state ~= 'x' then return hf.refused_sealed() end
    hf.cancel(row)
elseif state ~= 'c' then
    return hf.refused('StateConflict', { job_id = row[ID], verb = 'cancel', state = state })
end
hf.close()
return hf.shown({ row[ID] })
