-- edit: an operator changes one unstarted job, or deletes one that is not running.

-- == script edit: change an unstarted job; with `revive` a dead one is revived first.
-- args: now, id, by, text, revive, queue, group, priority, order, due_at, delay
-- raw: arguments...
-- `text` says what is changed, '' for nothing. What is nil stays; group and order are false for none. `arguments` are
-- the new ones, or absent. Returns the job's pieces, or a refusal. Concurrency: a script runs alone, so a claim came
-- before it (the job is running: refused) or after it.

if sealed then return hf.refused_sealed() end
local row = hf.row_of(args.id)
if not row then return hf.refused('JobNotFound', { job_id = args.id }) end
local state = row[STATE]

local function conflict(facts)
    facts.job_id, facts.verb, facts.state = row[ID], 'edit', state
    return hf.refused('StateConflict', facts)
end

local revives = args.revive and state == 'd'
if revives then
    local taken = row[KEY] and hf.key_taken(hf.key_name(row))
    if taken and taken ~= row then return conflict({ live_id = taken[ID] }) end
    local letter = hf.letter_at(hf.logical_of(row))
    if letter and letter.id ~= row[ID] then return conflict({ heir_id = letter.id }) end
elseif state == 'x' or not hf.live_states[state] then
    return conflict({})
end

local group, priority = row[GROUP], args.priority or row[PRIORITY]
if args.group ~= nil then group = args.group end
local order = args.order
if order == nil then order = hf.order_of(row) end
local moved = hf.move_of(row, args.queue or row[QUEUE], revives)
if moved.live_id or moved.letter_id then
    return conflict({ live_id = moved.live_id, letter_id = moved.letter_id })
end

if revives then
    hf.revive(row, 0)
    hf.mark(row, { kind = 'revive', by = args.by })
end
local due_at = args.due_at or args.delay and now + args.delay
if PLACE.arguments <= #ARGV then hf.store_arguments(row[ID], ARGV.arguments) end
hf.edit(row, moved, group, priority, order, due_at)
if args.text ~= '' then hf.mark(row, { kind = 'edit', by = args.by, text = args.text }) end
hf.close()
return hf.pieces_of({ row[ID] })

-- == script delete: remove a job that is not running, with everything stored about it and the letter it holds.
-- args: now, id
-- Returns the job's pieces as they were, or a refusal. Its id is remembered for as long as that of a finished job.

if sealed then return hf.refused_sealed() end
local row = hf.row_of(args.id)
if not row then return hf.refused('JobNotFound', { job_id = args.id }) end
if row[STATE] == 'x' then
    return hf.refused('StateConflict', { job_id = row[ID], verb = 'delete', state = row[STATE] })
end
local child = hf.any('e') and hf.awaited_by(row[ID])
if child then
    return hf.refused('StateConflict', { job_id = row[ID], verb = 'delete', state = row[STATE], child_id = child })
end
local pieces = hf.pieces_of({ row[ID] })
local logical = hf.held_letter(row[ID])
if logical then hf.drop_letter(logical) end
local ends = (row[FINISHED_AT] or now) + REMEMBER_SECONDS_MIN
if ends > now then
    hf.put(REMEMBERED, row[ID], hf.score_of(ends))
    hf.use('m')
end
hf.touch_waited(row)
hf.remove_rows({ row[ID] })
hf.cache[args.id] = false
hf.close()
return pieces

-- == part edits: apply an edit to a job, once nothing refuses it.
-- lazy: built when a script first uses one of its names.

-- What moves to another queue, too: `key`, the name of the key it takes there, and `letter`, its own letter's logical
-- job. Or why it may not: live_id, the job that holds the key there; letter_id, the one whose letter is there.
function hf.move_of(row, queue, revives)
    local moved = { queue = queue }
    if queue == row[QUEUE] then return moved end
    local there = { [ID] = row[ID], [QUEUE] = queue, [TASK] = row[TASK], [KEY] = row[KEY], [TERMS] = row[TERMS] }
    if row[KEY] and (hf.holds(row) or revives) then
        moved.key = hf.key_name(there)
        local taken = hf.key_taken(moved.key)
        if taken and taken ~= row then moved.live_id = taken[ID] end
    end
    local logical = hf.held_letter(row[ID])
    if logical then
        moved.letter, moved.logical = logical, hf.logical_of(there)
        local other = hf.letter_at(moved.logical)
        if other and other.id ~= row[ID] then moved.letter_id = other.id end
    end
    return moved
end

function hf.set_order(row, order)
    local terms = row[TERMS]
    if not terms or terms == true then terms = { false, false, false, false, false, terms or false } end
    terms[TERMS_ORDER] = order or nil
    row[TERMS] = terms
end

function hf.edit(row, moved, group, priority, order, due_at)
    local plays = row[STATE] ~= 's'
    if due_at then plays = due_at <= now end
    local same_group = moved.queue == row[QUEUE] and group == row[GROUP]
    local same = same_group and priority == row[PRIORITY] and order == hf.order_of(row)
    local stays = same and plays == (row[STATE] ~= 's')
    if stays and not due_at then return end
    hf.touch_waited(row)
    local was_in, had_key = hf.leave(row)
    if moved.queue ~= row[QUEUE] and hf.holds(row) and moved.key ~= hf.key_name(row) then
        hf.set_holds(row, false)
        hf.note_key(row, had_key)
        hf.free_key(moved.key)
        row[QUEUE], had_key = moved.queue, false
        hf.set_holds(row, true)
    end
    row[QUEUE], row[GROUP], row[PRIORITY] = moved.queue, group, priority
    if order ~= hf.order_of(row) then hf.set_order(row, order) end
    if due_at then
        if row[EXPIRES_AT] then row[EXPIRES_AT] = row[EXPIRES_AT] - row[DUE_AT] + due_at end
        row[DUE_AT] = due_at
    end
    if moved.letter then hf.move_letter(moved, group) end
    if not stays then
        row[HELD] = row[HELD] and same_group
        if not (plays and same) then row[TURN] = false end
        row[STATE] = 's'
        if plays then return hf.enter_play(row, was_in, had_key) end
    end
    hf.enter_later(row, was_in, had_key)
end

-- A revived job's letter follows it into its new queue.
function hf.move_letter(moved, group)
    local letter = hf.drop_letter(moved.letter)
    if letter then
        letter.queue, letter.group = moved.queue, group or nil
        hf.keep_letter(moved.logical, letter)
    end
end

-- Exchanges the arguments in a job's body; its options and revival policy stay.
function hf.store_arguments(id, arguments)
    local body = call('HGET', BODIES, id) or NO_BODY
    if #body < BODY_HEAD then body = NO_BODY end
    local args_length, options_length, args_from = struct.unpack('>I4I4', body)
    body = spack('>I4I4', #arguments, options_length) .. arguments .. sub(body, args_from + args_length)
    if #body > (tonumber(meta.body_max) or HUGE) then hf.raise_body_max(#body) end
    call('HSET', BODIES, id, body)
end
