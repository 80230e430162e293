-- claim: settle and claim in one call, and decide which ready jobs a claim takes.

-- == script exchange: settle, release and claim in one step. A repeated call gets the first call's result again.
-- args: now, settlements, releases, request, nonce, trust_restarts, skip_fast_path
-- raw: values...
-- A settlement is [id, token] if the handler returned nothing and retention is the default; else all of SETTLED, the
-- last field only for a stall. Its value is true for null, or the position in ARGV. A release is RELEASE. The request
-- is REQUEST, or nil to settle only. The nonce makes tokens unguessable.
-- Returns known (0 no, 1 yes, 2 yes, by the fast path), answers, packed recovered jobs, leases (record and body of
-- each; in place of a long body a list with the id, and the caller reads that body on the same connection);
-- then the seal and the seconds of quiet time, if one of them kept the claim from leasing; then, after a claim,
-- the seconds until the rate limit or slow-down that held it back allows a start, or ''; then how many of the leases,
-- the last ones, are chained.
-- Concurrency: a script runs alone; every write to a lease is fenced by its token.

local settlements, releases, request, nonce = args.settlements, args.releases, args.request, args.nonce
local worker, last
local RETURNED_NOTHING = { counted = true, value = true }

-- Returns the record and body of each lease.
local function pieces_of(claim, packed)
    local rows, ids, pieces, n = claim.rows, {}, {}, #claim.rows
    local reads = not claim.weighs and BODIES_PASS(n)
    for i = 1, n do ids[i] = rows[i][ID] end
    for from = 1, n, ARGUMENTS_MAX do
        local upto = math.min(n, from + ARGUMENTS_MAX - 1)
        local bodies = reads and call('HMGET', BODIES, unpack(ids, from, upto))
        for i = from, upto do
            pieces[2 * i - 1] = packed and packed[ids[i]] or cpack(rows[i])
            if bodies then
                pieces[2 * i] = bodies[i - from + 1]
            elseif claim.weighs then
                pieces[2 * i] = claim.bodies[ids[i]]
            else
                pieces[2 * i] = BODY_OR_NAME(ids[i])
            end
        end
    end
    return pieces
end

-- This call was already carried out: return the leases it made that the worker still holds. If the limits are now
-- lower than then, return the first ones and release the rest.
local function again(answers)
    local bytes, left = request.bytes_max, { [false] = request.most, [true] = request.chained_max }
    local claim = { rows = {}, bodies = {}, bytes = bytes }
    local held, all, seen = hf.held_by(request.worker), true, {}
    claim.weighs = #held * (tonumber(meta.body_max) or HUGE) > bytes
    for _, row in ipairs(held) do
        if row[CLAIM_CALL] == request.call then
            local place = row[GROUP] and hf.strict(row[QUEUE], row[GROUP]) and hf.place_of(row[QUEUE], row[GROUP])
            local behind = place and seen[place] ~= nil or false
            local fits = left[behind] > 0 and not (behind and not seen[place]) and not claim.full
            if fits and claim.weighs and not hf.fits(row[ID], claim) then claim.full, fits = true, false end
            if place then seen[place] = fits end
            if fits then
                left[behind], claim.rows[#claim.rows + 1] = left[behind] - 1, row
            else
                hf.release(row)
            end
            all = all and fits
        end
    end
    if not all then hf.close() end
    return { 1, answers, '\144', pieces_of(claim), '', '0', '', request.chained_max - left[true] }
end

if request then
    worker = hf.worker_row(request.worker)
    local packed = worker and call('HGET', CALLS, request.worker)
    last = packed and hf.sound_call(hf.read(packed)) or { 0, '' }
    if worker and request.call == last[CALL_NUMBER] then return again(last[CALL_ANSWERS]) end
end

local ids = {}
for i = 1, #settlements do ids[i] = settlements[i][SETTLED_ID] end
for i = 1, #releases do ids[#ids + 1] = releases[i][RELEASE_ID] end
hf.load_rows(ids)

local answers = {}
for i = 1, #settlements do
    local one = settlements[i]
    local row = hf.fenced(one[SETTLED_ID], one[SETTLED_TOKEN])
    if not row then
        answers[i] = 'l'
    elseif one[SETTLED_ENDING] == 't' then
        hf.stall(row, one[SETTLED_FAILURE] or { reason = 'crash' }, one[SETTLED_ALONE], true, one[SETTLED_RETAIN])
        answers[i] = 'o'
    elseif row[CANCEL_REQUESTED] and one[SETTLED_ENDING] ~= 'c' then
        answers[i] = 'c'
    else
        local how = RETURNED_NOTHING
        if one[SETTLED_ENDING] then
            how = { counted = true, failed = one[SETTLED_FAILED], delay = one[SETTLED_DELAY],
                value = one[SETTLED_VALUE], failure = one[SETTLED_FAILURE], reason = one[SETTLED_REASON],
                retain = one[SETTLED_RETAIN] }
        end
        local into = one[SETTLED_ENDING] or 'o'
        if into == 'z' then
            hf.mark_lease(row, 'snooze')
            into = 's'
        end
        hf.end_lease(row, into, how)
        answers[i] = 'o'
    end
end
for i = 1, #releases do
    local row = hf.fenced(releases[i][RELEASE_ID], releases[i][RELEASE_TOKEN])
    if row then hf.release(row, releases[i][RELEASE_DELAY]) end
    answers[#answers + 1] = row and 'o' or 'l'
end
answers = concat(answers)
if #hf.removes > 0 then hf.remove_ended() end
if hf.propagates then hf.propagates(PROPAGATE_MAX) end
hf.refill_touched()
local function ended(known, recovered)
    hf.close()
    return { known, answers, recovered or '\144', {} }
end

if not request then return ended(1) end
if not worker then return ended(0) end
if request.call < last[CALL_NUMBER] then return ended(1) end

local function gave_nothing(recovered, quiet)
    call('HSET', CALLS, request.worker, cpack({ request.call, answers }))
    hf.close()
    return { 1, answers, recovered, {}, sealed or '', format('%.6f', quiet) }
end

local quiet = hf.quiet_seconds(args.trust_restarts)
if quiet > 0 then return gave_nothing('\144', quiet) end

-- A claim after its worker's own deadline finds that worker among the stalled ones: it is unknown from here on.
local recovered = '\144'
if call('ZCOUNT', DEADLINES, '-inf', now) > 0 then
    local lines = hf.recover({}, math.ceil(request.sweep_max / 2))
    if #lines > 0 then recovered = cpack(lines) end
end
if now >= worker[WORKER_DEADLINE] then return ended(0, recovered) end

if sealed then return gave_nothing(recovered, 0) end

hf.promote(request.sweep_max)
local is_changing = meta.used and string.find(meta.used, 'r', 1, true) and hf.rearrange(request.sweep_max)
hf.flush()
hf.wake_for_freed()
local most, by_queue = request.most, request.most_by_queue
local by_task, by_group, wanted = request.most_by_task, request.most_by_group, request.priorities
local claim = { worker = request.worker, call = request.call, nonce = nonce, rows = {}, tasks = {}, buckets = {},
    groups = {}, held = {}, by_task = by_task, by_group = by_group, sweep = request.sweep_max,
    lowest = wanted and wanted[RANGE_LOWEST], highest = wanted and wanted[RANGE_HIGHEST],
    is_changing = is_changing, bodies = {}, bytes = request.bytes_max,
    weighs = (most + request.chained_max) * (tonumber(meta.body_max) or HUGE) > request.bytes_max }
local any_rules = meta.used and string.find(meta.used, '[ot]') -- without, no task ever had a lane of its own
claim.any_apart = any_rules and call('ZCARD', APART) > 0
claim.capped = by_group or claim.lowest or claim.any_apart and next(by_task) -- jobs may be left that others can take
claim.ruled = any_rules or hf.any('p')
if by_group then hf.note_held(claim) end
for _, queue in ipairs(request.queues) do
    local left = claim.full and 0 or most - #claim.rows
    hf.claim_queue(queue, math.min(left, by_queue[queue] or left), claim)
end
if next(claim.tasks) or next(claim.groups) then hf.charge_all(claim) end
local may_chain = request.chained_max > 0 and not is_changing
local chained = may_chain and hf.chain(claim, request.chain_by_queue, request.chained_max) or 0
call('HSET', CALLS, request.worker, cpack({ request.call, answers }))
local packed = hf.close()
local opens_at = hf.any('f') and hf.opens_at(request.queues)
local leases = pieces_of(claim, packed)
return { 1, answers, recovered, leases, '', '0', opens_at and format('%.17g', opens_at - now) or '', chained }

-- == part claims: lease ready jobs of a queue, lane by lane. Group limits and rates were applied when the jobs became
-- ready; ready and running both count as in play, so a claim changes no group's occupancy. Queue and task limits are
-- applied here: nothing is leased beyond them, and each rate is charged once for everything that started.

-- On its way the claim handles expired jobs, jobs whose task changed lanes, and groups not yet fitted to a new rule, up
-- to its sweep limit; it leaves the rest where they are. A lane behind them still gets one look; the next claim
-- continues.
local GROUP_LOOKS_MAX = 64
hf.swept = 0

-- Resolves what keeps the job from being leased. Returns whether it may be leased now, and whether it stays in place.
function hf.resolve(row, claim)
    if hf.swept >= claim.sweep then return false, true end
    hf.swept = hf.swept + 1
    if row[EXPIRES_AT] and row[EXPIRES_AT] <= now then
        hf.expire(row)
    elseif hf.lane_of(row) ~= row[LANE] % 4 then
        hf.change_lane(row) -- a pause, a limit or a rule of its task is still being carried out
    else
        local before = hf.moved
        hf.fit_group(hf.place_of(row[QUEUE], row[GROUP]))
        hf.swept = hf.swept + hf.moved - before
        return row[STATE] == 'r', false
    end
    return false, false
end

-- Whether anything keeps the job from being leased.
function hf.is_blocked(row, claim)
    return row[EXPIRES_AT] and row[EXPIRES_AT] <= now or claim.ruled and hf.lane_of(row) ~= row[LANE] % 4
        or claim.is_changing and row[GROUP] and not hf.is_fitted(row[QUEUE], hf.place_of(row[QUEUE], row[GROUP]))
end

function hf.lease(row, claim)
    local fence = hf.next_tick()
    LEASE_RECORD(row, fence, claim.nonce, claim.worker, claim.call)
    if row[EXPIRES_AT] then hf.put(EXPIRING, row[ID], false) end
    if row[LANE] > 7 then hf.put(STAGED, hf.staged_member(row), false) end
    if row[TERMS] then hf.start_key(row) end
    if row[GROUP] and (claim.watched or claim.by_group) then hf.note_group(row, claim) end
    hf.begun_for[row[TASK]] = (hf.begun_for[row[TASK]] or 0) + 1
    hf.put(RUNNING, hf.running_member(row), '0')
    hf.changed[row[ID]] = row
    claim.rows[#claim.rows + 1] = row
end

-- Leases up to `most` jobs of one lane. A lane has a key, the range of its members, its task if it is a dedicated lane,
-- and whether it may have more jobs.
function hf.lease_from(lane, most, claim)
    local skipped = 0 -- members that stay at the front of the range
    while most > 0 and lane.more do
        hf.flush()
        local lower = lane.lower or '[' .. lane.prefix
        local members = call('ZRANGEBYLEX', lane.key, lower, lane.upper, 'LIMIT', skipped, most)
        local ids = hf.ids_after(members, #lane.prefix + 28)
        hf.load_rows(ids)
        if #ids < most then lane.more = false end
        local taken, was_kept, may_be_kept = {}, false, claim.ruled or claim.is_changing
        for i = 1, #ids do
            local row = hf.cache[ids[i]]
            local may, stays = row and row[STATE] == 'r', false
            if not may then -- where it was not withdrawn just now, it leads to no job, or to one that is leased
                hf.flush()
                if call('ZSCORE', lane.key, members[i]) then
                    hf.set_aside(lane.task and 'apart' or 'ready', lane.key, members[i], row)
                    hf.swept = hf.swept + 1
                end
            elseif (may_be_kept or row[EXPIRES_AT]) and hf.is_blocked(row, claim) then
                may, stays = hf.resolve(row, claim)
                was_kept = true
            end
            if not may then
                if stays then skipped = skipped + 1 end
            elseif claim.by_group and row[GROUP] and hf.has_share(row, claim) or claim.lowest
                and (row[PRIORITY] < claim.lowest or row[PRIORITY] > claim.highest) then
                if lane.looks == GROUP_LOOKS_MAX then
                    lane.more = false
                    break
                end
                lane.looks, skipped = (lane.looks or 0) + 1, skipped + 1
            elseif claim.weighs and not hf.fits(ids[i], claim) then
                claim.full = true
                break
            else
                taken[#taken + 1] = members[i]
                hf.lease(row, claim)
            end
        end
        most = most - #taken
        if #taken == #ids and #ids > 0 and not was_kept then -- one range, removed at the cost of one
            call('ZREMRANGEBYLEX', lane.key, '[' .. members[1], '[' .. members[#ids])
        else
            for i = 1, #taken do hf.put(lane.key, taken[i], false) end
        end
        if claim.full or hf.swept >= claim.sweep then return end
    end
end

-- The lane picked by the call number goes first, the others follow. Each gets its share of the remaining room, then
-- whatever the others could not use. Returns whether the queue may have more jobs.
function hf.lease_from_lanes(queue, most, claim)
    local low, high = hf.lane_prefix(queue, 0), hf.lane_prefix(queue, 1)
    local lanes = {
        { key = READY, prefix = low, upper = '(' .. high, more = true },
        { key = READY, prefix = high, upper = '(' .. hf.lane_prefix(queue, 2), more = true },
    }
    if claim.any_apart then hf.add_apart(lanes, queue, claim) end
    if claim.lowest then hf.narrow(lanes, queue, claim) end
    local number, rows = #lanes, claim.rows
    local upto, first = #rows + most, claim.call % number
    for i = 0, 2 * number - 1 do
        local lane, left = lanes[(first + i) % number + 1], upto - #rows
        if left > 0 and lane.more and not claim.full then
            local share = i < number and math.ceil(left / (number - i)) or left
            hf.lease_from(lane, lane.task and hf.share_apart(share, lane, claim) or share, claim)
        end
    end
    return #rows == upto or hf.swept > 0 or claim.full
end

function hf.claim_queue(queue, most, claim)
    local rule, had, room = hf.rule_of(queue), #claim.rows, UNLIMITED
    if rule.rate then hf.pull_back(rule.rate, 'q' .. queue) end
    if rule.rate or rule.limit < UNLIMITED or hf.any('p') or hf.any('f') then room = hf.queue_room(queue) end
    -- True if groups get another job ready when one of theirs is leased, or have a rate to charge.
    claim.watched = rule[RULE_GROUP_RATE]
        or (rule[RULE_GROUP_ORDER] ~= 'strict' and rule[RULE_GROUP_LIMIT] > READY_PER_GROUP_MAX) or hf.any('o')
    local more = most > 0 and room > 0 and hf.lease_from_lanes(queue, math.min(most, room), claim)
    local leased = #claim.rows - had
    if room <= 0 or (most > 0 and not claim.capped and (not more or leased == room)) then
        hf.to_wake[queue] = nil -- nothing claimable is left there to tell others of
    end
    if leased > 0 then
        hf.begun_of[queue] = (hf.begun_of[queue] or 0) + leased
        if rule.rate then hf.charge(rule.rate, 'q' .. queue, leased) end
    end
end

-- == part body_limits: limits the bytes of arguments a claim hands out. A body that is not handed out is not read.
-- Takes claim.rows, leased so far; claim.bytes, the bytes left; claim.bodies, the bodies already read. A long one
-- is not read here (BODY_OR_NAME), so all of it counts, its options, too.
-- `body_max` in meta is at least the length of the longest body ever stored: if that many bytes fit for each job, no
-- length is checked. A store created before it existed lacks it, and then every length is checked.
-- lazy: built when a script first uses one of its names.

local BODY_HEAD, HUGE = 9, 1e15 -- BODY_HEAD: bytes of a body without options and revival besides its arguments
local BODY_LATER, BODIES_PASS_MAX = 8192, 131072 -- longer bodies are left to the caller, if all take more than that
local OPTIONS_SEEN_MAX = 4096 -- options are rarely longer; a body too long by more than this is not read to make sure

-- Whether the claim may also hand out this job. The first job is allowed whatever its size.
function hf.fits(id, claim)
    local first = #claim.rows == 0
    local length = call('HSTRLEN', BODIES, id) - BODY_HEAD
    if not first and length - OPTIONS_SEEN_MAX > claim.bytes then return false end
    local body = BODY_OR_NAME(id)
    local bytes = type(body) == 'table' and length
        or body and #body >= BODY_HEAD and math.min(struct.unpack('>I4', body), #body) or 0
    if not first and bytes > claim.bytes then return false end
    claim.bytes, claim.bodies[id] = claim.bytes - bytes, body
    return true
end

-- Records a body longer than any before, with twice its length, so that this is rarely written.
function hf.raise_body_max(length)
    meta.body_max = format('%.0f', 2 * length)
    call('HSET', META, 'body_max', meta.body_max)
end
