-- revive: a dead job comes into play with fresh budgets and its letter says so; retry takes any finished job.
-- Takes now, id, the verb asked for. Returns the job's pieces, or a refusal.

if sealed then return hf.refused_sealed() end
local verb = args[3]
local row = hf.row_of(args[2])
if not row then return hf.refused('JobNotFound', { job_id = args[2] }) end
local state = row[STATE]

local function conflict(live, heir)
    return hf.refused('StateConflict', { job_id = row[ID], verb = verb, state = state, live_id = live,
        heir_id = heir })
end

if hf.live_states[state] then
    if verb == 'retry' then return conflict() end
    if hf.held_letter(row[ID]) then return hf.shown({ row[ID] }) end -- revived before: nothing to do
end
if verb == 'revive' and state ~= 'd' then return conflict() end
local taken = row[KEY] and hf.key_taken(hf.key_name(row))
if taken and taken ~= row then return conflict(taken[ID]) end
if state == 'd' then
    local letter = hf.letter_at(hf.logical_of(row))
    if letter and letter.id ~= row[ID] then return conflict(nil, letter.id) end
    hf.revive(row, 0)
else
    hf.again(row)
end
hf.close()
return hf.shown({ row[ID] })
