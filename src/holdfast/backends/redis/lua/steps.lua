-- steps: what jobs keep between their attempts (R91 to R94): stored by their handlers and by signals.

-- == script checkpoint: store steps of a running job.
-- args: now, id, token, steps
-- raw: values...
-- Each of `steps` is a NEW_STEP, its value the raw text at the same place, '' for none.
-- Returns o, or l for a lost lease, which stores nothing. Concurrency: fenced by the token.

local row = hf.fenced(args.id, args.token)
if not row then return { 'l' } end
for i, step in ipairs(args.steps) do
    local delay, value = step[NEW_STEP_DELAY], ARGV[PLACE.values + i - 1]
    local until_at = delay and now + delay or false
    local stored = { step[NEW_STEP_NUMBER], value ~= '' and value, until_at, now, row[FENCE] }
    hf.keep_step(row[ID], step[NEW_STEP_KIND], step[NEW_STEP_NAME], stored)
end
return { 'o' }

-- == script signal: store a signal; a job that waits for it is brought into play.
-- args: now, id, name, by
-- raw: value
-- Returns the job's pieces, or a refusal. Concurrency: a script runs alone, so the signal comes either before the
-- snooze, which then sees it, or after, and finds the job asleep.

if sealed then return hf.refused_sealed() end
local row = hf.row_of(args.id)
if not row then return hf.refused('JobNotFound', { job_id = args.id }) end
if not hf.live_states[row[STATE]] then
    return hf.refused('StateConflict', { job_id = row[ID], verb = 'signal', state = row[STATE] })
end
if not hf.is_signalled(row[ID], args.name) then
    if #hf.steps_of(row[ID], 'signal') >= SIGNALS_MAX then
        return hf.refused('TooManySignals', { job_id = row[ID] })
    end
    hf.keep_step(row[ID], 'signal', args.name, { 0, ARGV.value, false, now, row[FENCE] })
    local packed = call('HGET', STEP_VALUES, hf.step_member(row[ID], 'wait', args.name))
    local wait = packed and hf.read(packed)
    if row[STATE] == 's' and row[DUE_AT] ~= DUE_AFTER_PARENTS and wait and wait[STEP_FENCE] == row[FENCE] then
        local was_in, had_key = hf.leave(row)
        row[DUE_AT] = now
        hf.enter_play(row, was_in, had_key)
    end
    hf.mark(row, { kind = 'signal', by = args.by, text = args.name })
end
hf.close()
return hf.pieces_of({ row[ID] })

-- == script steps: a job's stored steps.
-- args: now, id
-- Returns the time, then the member and the packed step of each, by kind and name. Never writes.

return { format('%.6f', now), hf.stored_steps(hf.steps_of(args.id, '')) }

-- == part steps: a step is a member of `steps`, by job, kind and name, and its values are in `step_values`.
-- lazy: built when a script first uses one of its names.

local SIGNALS_MAX = 100

function hf.step_member(id, kind, name) return hf.escape(id) .. kind .. '\0' .. name end

function hf.keep_step(id, kind, name, step)
    local member = hf.step_member(id, kind, name)
    hf.use('s')
    call('ZADD', STEPS, 0, member)
    call('HSET', STEP_VALUES, member, cpack(step))
end

function hf.is_signalled(id, name)
    return call('HEXISTS', STEP_VALUES, hf.step_member(id, 'signal', name)) == 1
end

-- The members of a job's steps, in order; of one kind unless that is ''.
function hf.steps_of(id, kind)
    local prefix = hf.escape(id) .. (kind == '' and '' or kind .. '\0')
    return call('ZRANGEBYLEX', STEPS, '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1')
end

-- Each member and its packed values.
function hf.stored_steps(members)
    local found = {}
    for i, member in ipairs(members) do found[i] = { member, call('HGET', STEP_VALUES, member) } end
    return found
end

-- Removes the steps of jobs that are removed or start afresh.
function hf.forget_steps(ids)
    for _, id in ipairs(ids) do
        local members = hf.steps_of(id, '')
        hf.in_pieces('ZREM', STEPS, members, #members)
        hf.in_pieces('HDEL', STEP_VALUES, members, #members)
    end
end

-- == part step_flaws: each step has its job and its values.
-- lazy: built when a script first uses one of its names.

function hf.check_step(member)
    local id = hf.plain(sub(member, 1, (string.find(member, '\0', 1, true) or #member + 1) - 1))
    if call('HEXISTS', JOBS, id) == 0 then hf.note_flaw('steps', id, '', 'its job is gone') end
    if call('HEXISTS', STEP_VALUES, member) == 0 then hf.note_flaw('steps', id, '', 'its values are gone') end
end

function hf.check_step_values(member, packed)
    if not call('ZSCORE', STEPS, member) then hf.note_flaw('step_values', member, '', 'it is not listed in steps') end
    if not hf.read(packed) then hf.note_flaw('step_values', member, '', 'it cannot be read') end
end
