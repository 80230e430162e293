-- exchange: settle, release and claim in one step; a repeated call is answered, not carried out again.
-- Takes now, settlements as [id, token] where the handler returned nothing and retention is the usual, else
-- [id, token, ending, failed, delay, value, failure, reason, retain], and for a stall whether it was alone; releases;
-- request or nil; a nonce for tokens; whether restarts are trusted; whether to go the long way; from ARGV[2] on,
-- values.
-- The request is [worker, call, queues, most, most by queue, most by task, most of a group, most bytes of arguments,
-- most that is swept].
-- Returns known (2: and the short way was taken), answers, what was recovered, leases; and the seal and the seconds of
-- quiet, where nothing was leased because of one of them; then, after a claim, the seconds until a bucket or a
-- slow-down that held it back opens.
-- Safe against a rival: a script runs alone; every write about a lease is fenced by its token.

local settlements, releases, request, nonce = args[2], args[3], args[4], args[5]
local worker, last
local RETURNED_NOTHING = { counted = true, value = true }

-- Record and body of each lease.
local function pieces_of(claim, packed)
    local rows, ids, pieces, n = claim.rows, {}, {}, #claim.rows
    for i = 1, n do ids[i] = rows[i][ID] end
    for from = 1, n, ARGUMENTS_MAX do
        local upto = math.min(n, from + ARGUMENTS_MAX - 1)
        local bodies = not claim.weighs and call('HMGET', BODIES, unpack(ids, from, upto))
        for i = from, upto do
            pieces[2 * i - 1] = packed and packed[ids[i]] or cpack(rows[i])
            if bodies then pieces[2 * i] = bodies[i - from + 1] else pieces[2 * i] = claim.bodies[ids[i]] end
        end
    end
    return pieces
end

-- The call was carried out before: the leases of that time that are still ours. Who asks for less than then gets the
-- first ones; the others are given back.
local function again(answers)
    local most, bytes = request[4], request[8]
    local claim = { rows = {}, bodies = {}, bytes = bytes }
    local held, more = hf.held_by(request[1]), true
    claim.weighs = #held * (tonumber(meta[8]) or HUGE) > bytes
    for _, row in ipairs(held) do
        if row[CLAIM_CALL] == request[2] then
            more = more and #claim.rows < most and (not claim.weighs or hf.fits(row[ID], claim))
            if more then claim.rows[#claim.rows + 1] = row else hf.give_back(row) end
        end
    end
    if not more then hf.close() end
    return { 1, answers, '\144', pieces_of(claim) }
end

if request then
    worker = hf.worker_row(request[1])
    local packed = worker and call('HGET', CALLS, request[1])
    last = packed and hf.sound_call(hf.read(packed)) or { 0, '' }
    if worker and request[2] == last[1] then return again(last[2]) end
end

local ids = {}
for i = 1, #settlements do ids[i] = settlements[i][1] end
for i = 1, #releases do ids[#ids + 1] = releases[i][1] end
hf.load_rows(ids)

local answers = {}
for i = 1, #settlements do
    local one = settlements[i]
    local row = hf.fenced(one[1], one[2])
    if not row then
        answers[i] = 'l'
    elseif one[3] == 't' then
        hf.stall(row, one[7] or { reason = 'crash' }, one[10], true, one[9])
        answers[i] = 'o'
    elseif row[CANCEL_REQUESTED] and one[3] ~= 'c' then
        answers[i] = 'c'
    else
        local how = RETURNED_NOTHING
        if one[3] then
            how = { counted = true, failed = one[4], delay = one[5], value = one[6], failure = one[7],
                reason = one[8], retain = one[9] }
        end
        hf.end_lease(row, one[3] or 'o', how)
        answers[i] = 'o'
    end
end
for i = 1, #releases do
    local row = hf.fenced(releases[i][1], releases[i][2])
    if row then hf.give_back(row, releases[i][3]) end
    answers[#answers + 1] = row and 'o' or 'l'
end
answers = concat(answers)
hf.refill_touched()

local function ended(known, recovered)
    hf.close()
    return { known, answers, recovered or '\144', {} }
end

if not request then return ended(1) end
if not worker then return ended(0) end
if request[2] < last[1] then return ended(1) end

local function gave_nothing(recovered, quiet)
    call('HSET', CALLS, request[1], cpack({ request[2], answers }))
    hf.close()
    return { 1, answers, recovered, {}, sealed or '', format('%.6f', quiet) }
end

local quiet = hf.quiet_seconds(args[6])
if quiet > 0 then return gave_nothing('\144', quiet) end

-- A claim after its worker's own deadline finds itself among the stalled: the worker is unknown from here on.
local recovered = '\144'
if call('ZCOUNT', DEADLINES, '-inf', now) > 0 then
    local lines = hf.recover({}, math.ceil(request[9] / 2))
    if #lines > 0 then recovered = cpack(lines) end
end
if now >= worker[4] then return ended(0, recovered) end

if sealed then return gave_nothing(recovered, 0) end

hf.promote(request[9])
local is_changing = meta[7] and string.find(meta[7], 'r', 1, true) and hf.rearrange(request[9])
hf.flush()
hf.stir_freed()
local most, by_queue, by_task, by_group = request[4], request[5], request[6], request[7]
local claim = { worker = request[1], call = request[2], nonce = nonce, rows = {}, tasks = {}, buckets = {}, groups = {},
    held = {}, by_task = by_task, by_group = by_group, sweep = request[9], is_changing = is_changing,
    bodies = {}, bytes = request[8], weighs = most * (tonumber(meta[8]) or HUGE) > request[8] }
local any_rules = meta[7] and string.find(meta[7], '[ot]') -- without, no task ever had a lane of its own
claim.any_apart = any_rules and call('ZCARD', APART) > 0
claim.capped = by_group or claim.any_apart and next(by_task) -- jobs may be left that others can take
claim.ruled = any_rules or hf.any('p')
if by_group then hf.note_held(claim) end
for _, queue in ipairs(request[3]) do
    local left = claim.full and 0 or most - #claim.rows
    hf.claim_queue(queue, math.min(left, by_queue[queue] or left), claim)
end
if next(claim.tasks) or next(claim.groups) then hf.charge_all(claim) end
call('HSET', CALLS, request[1], cpack({ request[2], answers }))
local packed = hf.close()
local opens_at = hf.any('f') and hf.opens_at(request[3])
local leases = pieces_of(claim, packed)
return { 1, answers, recovered, leases, '', '0', opens_at and format('%.17g', opens_at - now) or nil }
