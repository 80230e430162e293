-- cancel: an unstarted job is cancelled, a running one marked; a cancelled one is left as it is.
-- Takes now, id. Returns the job's pieces, or a refusal.
-- needs: opening turns names rows index refilling letters endings closing showing

local row = hf.row_of(args[2])
if not row then return hf.refused('JobNotFound', { job_id = args[2] }) end
local state = row[STATE]
if state == 'x' then
    row[CANCEL_REQUESTED] = true
    hf.changed[row[ID]] = row
elseif LIVE_STATES[state] then
    if sealed then return hf.refused_sealed() end
    local was_in, was_live = hf.leave(row)
    hf.finish(row, was_in, was_live, 'c', RETAIN_SECONDS)
elseif state ~= 'c' then
    return hf.refused('StateConflict', { job_id = row[ID], verb = 'cancel', state = state,
        advice = 'Only unfinished jobs can be cancelled.' })
end
hf.close()
return hf.shown({ row[ID] })
