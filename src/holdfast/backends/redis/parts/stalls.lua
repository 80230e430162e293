-- stalls: THE routine that ends the leases of workers past their deadline or proved dead; the sweep and claim share it.
-- Bounded. The verdict is lifecycle.stall_verdict's. A worker's row goes once it holds nothing.

-- Answers whether the stall counted.
function hf.stall(row)
    if row[MAX_STALLS] == 0 and not row[BEGUN] then
        hf.give_back(row)
        return false
    end
    local into = 'r'
    if row[CANCEL_REQUESTED] then
        into = 'c'
    elseif row[STALLS] + 1 > row[MAX_STALLS] then
        into = 'd'
    end
    local text = format('stall %d; %d are allowed', row[STALLS] + 1, row[MAX_STALLS])
    local failure = { reason = 'stalled', text = text }
    hf.end_lease(row, into, { counted = true, stalled = true, failure = failure, reason = 'stalled' })
    return true
end

-- A deadline further away than its lease: the server's clock went back. Its time starts anew, so that a worker that is
-- alive keeps what it holds and one that is dead is found within one lease.
function hf.mend_deadlines()
    if given then return end
    for _, id in ipairs(call('ZRANGEBYSCORE', DEADLINES, format('(%.17g', now + 1), '+inf', 'LIMIT', 0, 1000)) do
        local worker = hf.worker_row(id)
        if worker and worker[4] > now + worker[1] + 1 then hf.prolong(id, worker) end
    end
end

-- Answers one packed line per lease ended, in the shape of records.Recovered.
function hf.recover(dead, limit)
    local workers, known = {}, {}
    for _, id in ipairs(dead) do
        if not known[id] and call('HEXISTS', WORKERS, id) == 1 then
            known[id] = true
            workers[#workers + 1] = id
        end
    end
    for _, id in ipairs(call('ZRANGEBYSCORE', DEADLINES, '-inf', now)) do
        if not known[id] then workers[#workers + 1] = id end
    end
    local ended = {}
    for _, id in ipairs(workers) do
        local room = limit - #ended
        local rows = hf.held_by(id, room + 1)
        for i = 1, math.min(room, #rows) do
            ended[#ended + 1] = { rows[i], id, hf.stall(rows[i]) }
        end
        if #rows <= room then hf.forget_worker(id) end
    end
    hf.refill_touched()
    local lines = {}
    for i, one in ipairs(ended) do
        local row = one[1]
        lines[i] = { row[ID], row[TASK], row[QUEUE], row[GROUP], row[STATE], one[2], row[STALLS], one[3] }
    end
    return lines
end
