-- recover: end the leases of dead and silent workers; decide stalls.

-- == script recover: end the leases of workers whose deadline has passed and of workers proved dead. Bounded.
-- args: now, dead, limit, trust_restarts
-- `dead`: ids of dead workers. Returns one packed line (RECOVERED) per lease ended; none during a quiet time.
-- Concurrency: a script runs alone. Idempotent: a lease that has ended has no token.

if hf.quiet_seconds(args.trust_restarts) > 0 then return { cpack({}) } end
hf.repair_deadlines()
local lines = hf.recover(args.dead, args.limit)
hf.close()
return { cpack(lines) }

-- == part stalls: THE routine that decides stalls, reported by the owner or found by recover; and recover, for sweep
-- and claim. Bounded. The verdict is that of lifecycle.stall_verdict. A worker's row is removed once it holds nothing.
-- lazy: built when a script first uses one of its names.

local SHARED_STALLS_MAX, WORKERS_SEEN_MAX = 10, 500

-- Returns whether the stall counted.
function hf.stall(row, failure, alone, begun, retain)
    local most = row[MAX_STALLS]
    if most == 0 and not begun then
        hf.release(row)
        return false
    end
    local stalls, shared = row[STALLS] + (alone and 1 or 0), row[SHARED_STALLS] + (alone and 0 or 1)
    local into = 'r'
    if row[CANCEL_REQUESTED] then
        into = 'c'
    elseif most == 0 or stalls > most or shared > SHARED_STALLS_MAX then
        into = 'd'
    end
    hf.end_lease(row, into, { counted = true, stalled = true, alone = alone, failure = failure, retain = retain,
        reason = failure.reason })
    return true
end

-- Whether a lease follows another one in its chain: then nobody knows whether it began (R47). Takes the fences of the
-- first leases found so far, by group.
function hf.is_behind(row, firsts)
    if not row[GROUP] or not hf.strict(row[QUEUE], row[GROUP]) then return false end
    local place = hf.place_of(row[QUEUE], row[GROUP])
    if not firsts[place] then
        hf.flush()
        local members = call('ZRANGEBYLEX', PLAY, '[' .. place, '(' .. place .. '\255')
        firsts[place] = row[FENCE]
        for _, one in ipairs(hf.rows_at('play', PLAY, members, hf.ids_after(members, #place), 'rxsd')) do
            if one[WORKER] == row[WORKER] and one[CLAIM_CALL] == row[CLAIM_CALL] then
                firsts[place] = math.min(firsts[place], one[FENCE])
            end
        end
    end
    return row[FENCE] > firsts[place]
end

-- Ends a lease whose worker is gone. Returns whether that counted.
function hf.stall_lost(row, isolates, firsts)
    if hf.is_behind(row, firsts) then
        hf.release(row)
        return false
    end
    local alone = row[SUSPECT] or not isolates
    local text
    if alone then
        text = format('text:stalled', row[STALLS] + 1, row[MAX_STALLS])
    else
        text = format('text:stalled_among', row[SHARED_STALLS] + 1, SHARED_STALLS_MAX)
    end
    return hf.stall(row, { reason = 'stalled', text = text }, alone, row[BEGUN])
end

-- A deadline further away than its lease means that the server's clock went back. It restarts from now, so that a live
-- worker keeps its leases and a dead one is found within one lease.
function hf.repair_deadlines()
    if given then return end
    local latest = call('ZREVRANGEBYSCORE', DEADLINES, '+inf', format('(%.17g', now + 1), 'LIMIT', 0, 1000)
    for _, id in ipairs(latest) do -- the furthest first: those of workers that have renewed since are nearer
        local worker = hf.worker_row(id)
        if worker and worker[WORKER_DEADLINE] > now + worker[WORKER_LEASE_SECONDS] + 1 then
            hf.extend_deadline(id, worker)
        end
    end
end

-- Returns one packed line per lease ended, in the shape of records.Recovered.
function hf.recover(dead, limit)
    local workers, known = {}, {}
    for _, id in ipairs(dead) do
        if not known[id] and call('HEXISTS', WORKERS, id) == 1 then
            known[id] = true
            workers[#workers + 1] = id
        end
    end
    for _, id in ipairs(call('ZRANGEBYSCORE', DEADLINES, '-inf', now, 'LIMIT', 0, WORKERS_SEEN_MAX)) do
        local worker = not known[id] and hf.worker_row(id)
        if worker and worker[WORKER_DEADLINE] > now then
            call('ZADD', DEADLINES, format('%.17g', worker[WORKER_DEADLINE]), id) -- the worker's row is right
        elseif not known[id] then
            workers[#workers + 1] = id
        end
    end
    local ended = {}
    for _, id in ipairs(workers) do
        local room = limit - #ended
        local rows, firsts = hf.held_by(id, room + 1, true), {} -- the last of a chain first
        local worker = #rows > 0 and hf.worker_row(id)
        local told = worker and hf.read(worker[WORKER_FACTS])
        local isolates = told and told.isolates
        for i = 1, math.min(room, #rows) do
            ended[#ended + 1] = { row = rows[i], worker = id, counted = hf.stall_lost(rows[i], isolates, firsts) }
        end
        if #rows <= room then hf.forget_worker(id) end
    end
    hf.refill_touched()
    local lines = {}
    for i, one in ipairs(ended) do
        local row = one.row
        lines[i] = { row[ID], row[TASK], row[QUEUE], row[GROUP], row[STATE], one.worker, row[STALLS], one.counted,
            row[SHARED_STALLS] }
    end
    return lines
end
