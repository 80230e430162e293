-- settle: how leases end.

-- == part endings: THE routine that ends leases, whatever the cause, and how a job finishes.
-- The token becomes void, the counters record why, the slot is free. The caller has checked the token; groups are
-- refilled afterwards.

local RETAIN_SECONDS = 86400
hf.removes = {} -- ids of jobs that go in the step of their success

-- The job succeeded or was cancelled: close its letter. `value`: nil, true for null, or its position in ARGV.
function hf.finish(row, was_in, had_key, state, retain, value)
    FINISH_RECORD(row, state, PRUNE_AT(retain))
    if row[TERMS] then row[PRUNE_AT] = math.max(row[PRUNE_AT], hf.end_key(row) or 0) end
    row[VALUE] = KEPT_VALUE(value)
    if row[VALUE] == 1 then call('HSET', VALUES, row[ID], ARGV[value]) end
    hf.enter(row, was_in, had_key)
    if hf.any('e') then hf.note_ended(row) end
    local letter = hf.any('d') and hf.drop_letter(hf.logical_of(row))
    if letter and letter.id ~= row[ID] then hf.supersede(letter.id) end
end

-- `into` 'r' makes the job claimable again at its old turn; 's' makes it due after how.delay.
function hf.end_lease(row, into, how)
    local was_in, had_key = hf.leave(row)
    if how.counted then row[ATTEMPTS] = row[ATTEMPTS] + 1 end
    if how.failed then row[FAILURES] = row[FAILURES] + 1 end
    if how.stalled then
        if how.alone then row[STALLS] = row[STALLS] + 1 else row[SHARED_STALLS] = row[SHARED_STALLS] + 1 end
        row[SUSPECT] = true
    elseif how.counted then
        row[SUSPECT] = false
    end
    local failure = how.failure
    if failure then
        failure.at, failure.attempt, failure.fence = now, row[ATTEMPTS], row[FENCE]
        failure.worker, failure.started_at = row[WORKER], row[STARTED_AT]
        hf.add_error(row[ID], failure)
    end
    END_LEASE(row)
    local finished = not hf.live_states[into]
    row[HELD] = row[GROUP] and not finished and hf.strict(row[QUEUE], row[GROUP]) or false
    -- It was claimed in time; what follows is not a late start.
    if how.counted and not finished then row[EXPIRES_AT] = false end
    if into == 'd' then
        hf.bury(row, was_in, had_key, how.reason or 'failed', failure, hf.stops(row[QUEUE], row[GROUP]))
    elseif finished then
        hf.finish(row, was_in, had_key, into, how.retain or RETAIN_SECONDS, how.value)
        if into == 'o' and how.retain and how.retain < 0 then hf.removes[#hf.removes + 1] = row[ID] end
    elseif into == 's' then
        local is_due = how.reason and hf.is_signalled(row[ID], how.reason) -- the signal that a snooze waits for
        row[DUE_AT] = is_due and now or now + how.delay
        row[TURN] = false
        row[STATE] = 's'
        hf.enter(row, was_in, had_key)
    else
        hf.enter_play(row, was_in, had_key)
    end
end

-- == part timelines: append to a job's timeline, in the step that makes the transition (R65).
-- lazy: built when a script first uses one of its names.

local MARKS_KEPT_MAX = 50

-- `mark` has kind and whatever else is known: by, text, worker, fence, started_at. Beyond MARKS_KEPT_MAX the second
-- entry makes room, so the first one stays.
function hf.mark(row, mark)
    local packed = call('HGET', MARKS, row[ID])
    local marks = packed and hf.read(packed)
    if packed and type(marks) ~= 'table' then hf.keep_unread('marks', row[ID], packed) end
    if type(marks) ~= 'table' then marks = {} end
    while #marks >= MARKS_KEPT_MAX do table.remove(marks, 2) end
    mark.at = now
    if mark.by == '' then mark.by = nil end
    if mark.text == '' then mark.text = nil end
    marks[#marks + 1] = mark
    call('HSET', MARKS, row[ID], cpack(marks))
end

-- Like mark, for marks that a lease may repeat: only the first and the newest are kept (formulas.noted).
function hf.note(row, mark)
    local packed = call('HGET', MARKS, row[ID])
    local marks = packed and hf.read(packed)
    mark.worker, mark.fence = row[WORKER] or nil, row[FENCE]
    local function is_same(one) return one and one.kind == mark.kind and one.fence == mark.fence end
    if type(marks) == 'table' and is_same(marks[#marks]) and is_same(marks[#marks - 1]) then
        mark.count = (marks[#marks].count or 1) + 1
        table.remove(marks)
        call('HSET', MARKS, row[ID], cpack(marks))
    end
    hf.mark(row, mark)
end

-- Marks how a lease ends.
function hf.mark_lease(row, kind)
    hf.mark(row, { kind = kind, worker = row[WORKER] or nil, fence = row[FENCE], started_at = row[STARTED_AT] or nil })
end

-- == part other_endings: how jobs end other than by success: released, cancelled, expired, buried unstarted; and their
-- errors.
-- lazy: built when a script first uses one of its names.

local ERRORS_KEPT_MAX = 10

function hf.add_error(id, failure)
    local packed = call('HGET', ERRORS, id)
    local failures = packed and hf.read(packed)
    if packed and not failures then hf.keep_unread('errors', id, packed) end
    failures = failures or {}
    failures[#failures + 1] = failure
    if #failures > ERRORS_KEPT_MAX then table.remove(failures, 1) end
    call('HSET', ERRORS, id, cpack(failures))
end

-- Releases a lease at no cost; if cancellation was requested, the job is cancelled.
function hf.release(row, delay)
    hf.mark_lease(row, 'release')
    if row[CANCEL_REQUESTED] then
        hf.end_lease(row, 'c', {})
    elseif delay and delay > 0 then
        hf.end_lease(row, 's', { delay = delay })
    else
        hf.end_lease(row, 'r', {})
    end
end

-- Buries a job that has no lease: expired, or by an operator.
function hf.bury_unstarted(row, reason, text)
    hf.touch_waited(row)
    local was_in, had_key = hf.leave(row)
    local failure = { at = now, reason = reason, text = text, attempt = row[ATTEMPTS], fence = row[FENCE] }
    hf.add_error(row[ID], failure)
    hf.bury(row, was_in, had_key, reason, failure)
end

function hf.expire(row)
    hf.count_ended(row, 'expired')
    local terms = row[TERMS]
    if not (terms and terms ~= true and terms[TERMS_DROPS]) then
        hf.bury_unstarted(row, 'expired', 'text:expired')
        return
    end
    hf.touch_waited(row)
    local was_in, had_key = hf.leave(row)
    row[REASON] = 'expired'
    hf.finish(row, was_in, had_key, 'c', RETAIN_SECONDS)
end

-- Unstarted: cancelled. Running: marked, and still running.
function hf.cancel(row, by, reason)
    if not row[CANCEL_REQUESTED] then hf.mark(row, { kind = 'cancel', by = by, text = reason }) end
    if row[STATE] == 'x' then
        row[CANCEL_REQUESTED] = true
        hf.changed[row[ID]] = row
    else
        hf.touch_waited(row)
        local was_in, had_key = hf.leave(row)
        hf.finish(row, was_in, had_key, 'c', RETAIN_SECONDS)
        hf.count_ended(row, 'cancelled')
    end
end

-- == script begin: mark leases begun before their handlers start.
-- args: now, held
-- Returns one letter for each HELD: o, l lost, c cancel requested. Concurrency: fenced by the token.

local answers, ids = {}, {}
for i, held in ipairs(args.held) do ids[i] = held[HELD_ID] end
hf.load_rows(ids)
for i, held in ipairs(args.held) do
    local row = hf.fenced(held[HELD_ID], held[HELD_TOKEN])
    answers[i] = not row and 'l' or row[CANCEL_REQUESTED] and 'c' or 'o'
    if answers[i] == 'o' and not row[BEGUN] then
        row[BEGUN] = true
        hf.changed[row[ID]] = row
    end
end
hf.save_rows()
return { concat(answers) }

-- == script report: store progress and log lines of running jobs, even if cancellation was requested.
-- args: now, reports
-- Returns one letter for each REPORT: o, l lost. Concurrency: fenced by the token.

local LOGS_KEPT_MAX = 200
local answers, ids = {}, {}
for i, report in ipairs(args.reports) do ids[i] = report[REPORT_ID] end
hf.load_rows(ids)

local function add_lines(id, lines)
    local packed = call('HGET', LOGS, id)
    local kept = packed and hf.read(packed) or {}
    for _, text in ipairs(lines) do kept[#kept + 1] = { now, text } end
    local newest = {}
    for i = math.max(1, #kept - LOGS_KEPT_MAX + 1), #kept do newest[#newest + 1] = kept[i] end
    call('HSET', LOGS, id, cpack(newest))
end

for i, report in ipairs(args.reports) do
    local id = report[REPORT_ID]
    local row = hf.fenced(id, report[REPORT_TOKEN])
    answers[i] = row and 'o' or 'l'
    if row then
        if report[REPORT_PROGRESS] or report[REPORT_TEXT] then
            hf.note(row, { kind = 'progress', progress = report[REPORT_PROGRESS], text = report[REPORT_TEXT] })
            local packed = call('HGET', PROGRESS, id)
            local progress = packed and hf.read(packed) or { false, false }
            local fraction = report[REPORT_PROGRESS] or progress[PROGRESS_FRACTION]
            call('HSET', PROGRESS, id, cpack({ fraction, report[REPORT_TEXT] or progress[PROGRESS_TEXT] }))
        end
        if #report[REPORT_LINES] > 0 then add_lines(id, report[REPORT_LINES]) end
    end
end
return { concat(answers) }

-- == script settle_with: end a lease as succeeded and store the jobs that its handler enqueued, both or neither.
-- args: now, settlement, jobs, numbering, links, ties
-- raw: value, bodies...
-- The settlement is as in script exchange, its value at ARGV 2; jobs, links and ties are as in script
-- link.
-- Returns a letter: o, l lost, c cancel requested; or a refusal. Concurrency: a script runs alone; fenced by the token;
-- what cannot be stored is refused before anything is written. A server whose memory is full refuses it.

local one, jobs, links, ties = args.settlement, args.jobs, args.links, args.ties
hf.load_rows({ one[SETTLED_ID] })
local row = hf.fenced(one[SETTLED_ID], one[SETTLED_TOKEN])
if not row then return { 'l' } end
if row[CANCEL_REQUESTED] then return { 'c' } end
local refusal = ties and hf.untieable(ties)
if not refusal and #jobs > 0 then refusal = hf.unlinkable(jobs, hf.known_among(jobs), links) end
if refusal then return refusal end
local how = { counted = true, value = true }
if one[SETTLED_ENDING] then how.value, how.retain = one[SETTLED_VALUE], one[SETTLED_RETAIN] end
hf.end_lease(row, 'o', how)
if #hf.removes > 0 then hf.remove_ended() end
if #jobs > 0 then
    local answers, others = hf.enqueue(jobs, PLACE.bodies, args.numbering, links)
    hf.link_new(jobs, links, answers, others)
end
if ties then hf.tie(ties) end
hf.close()
return { 'o' }
