-- renew: workers, and the one deadline shared by all leases of a worker.

-- == script register: store a worker's row, its deadline one lease from now; repeating it renews the deadline and
-- updates queues and slots.
-- args: now, id, lease_seconds
-- raw: facts
-- `facts`: the worker's packed description of itself. Returns 1. Concurrency: a script runs alone.

local id, lease_seconds = args.id, args.lease_seconds
if lease_seconds > hf.lease_max() then call('HSET', META, 'lease_max', format('%.17g', lease_seconds)) end
local worker = hf.worker_row(id)
if worker then
    local tells = cunpack(ARGV.facts)
    local told = hf.read(worker[WORKER_FACTS]) or tells
    told.queues, told.slots = tells.queues, tells.slots
    worker[WORKER_FACTS] = cpack(told)
end
hf.extend_deadline(id, worker or { lease_seconds, now, now, now, ARGV.facts })
return { 1 }

-- == script renew: move a worker's deadline; one small write however many leases it holds.
-- args: now, id, held, seen_call
-- raw: status
-- `held`: the leases it holds, each HELD; `seen_call`: the last claim whose reply it received; `status`, if it
-- publishes one.
-- Returns known, and packed lists: lost, cancelled, released. Leases of received claims that are not in the list are
-- released.
-- Concurrency: a script runs alone, and a lease is the worker's only under the token it names.

local id, held, seen = args.id, args.held, args.seen_call
local worker = hf.worker_row(id)
local lost, cancelled, released, named = {}, {}, {}, {}
if not worker then
    for i, one in ipairs(held) do lost[i] = one[HELD_ID] end
    return { 0, cpack(lost), '\144', '\144' }
end
hf.extend_deadline(id, worker)
if ARGV.status then call('HSET', PORTRAITS, id, ARGV.status) end
local ours = {}
local rows = hf.held_by(id)
for _, row in ipairs(rows) do ours[row[ID]] = row end
for _, one in ipairs(held) do
    local row = ours[one[HELD_ID]]
    named[one[HELD_ID]] = one[HELD_TOKEN]
    if not row or row[TOKEN] ~= one[HELD_TOKEN] then
        lost[#lost + 1] = one[HELD_ID]
    elseif row[CANCEL_REQUESTED] then
        cancelled[#cancelled + 1] = one[HELD_ID]
    end
end
for _, row in ipairs(rows) do
    if row[CLAIM_CALL] <= seen and named[row[ID]] ~= row[TOKEN] then
        hf.release(row)
        released[#released + 1] = row[ID]
    end
end
if #released > 0 then hf.close() end
return { 1, cpack(lost), cpack(cancelled), cpack(released) }

-- == script retire: a worker stops for good: release its leases at no cost and remove its row.
-- args: now, id
-- Returns how many leases. Concurrency: a script runs alone. Idempotent: a second call finds no row.

local id = args.id
if not hf.worker_row(id) then return { 0 } end
local rows = hf.held_by(id)
for _, row in ipairs(rows) do hf.release(row) end
hf.forget_worker(id)
hf.close()
return { #rows }

-- == part workers: a worker's row.

-- A worker's row: lease_seconds, started_at, renewed_at, deadline, its description; or nil if there is none or it
-- cannot be read.
function hf.worker_row(id)
    local packed = call('HGET', WORKERS, id)
    if not packed or #packed < 33 then return nil end
    local lease_seconds, started_at, renewed_at, deadline, rest = struct.unpack('>dddd', packed)
    if not (lease_seconds > 0 and lease_seconds < 1e12 and deadline > 0 and deadline < 1e12) then return nil end
    return { lease_seconds, started_at, renewed_at, deadline, sub(packed, rest) }
end

-- == part leases: what a worker holds, read from the index of running jobs.
-- lazy: built when a script first uses one of its names.

-- The worker's running jobs, in the order of their fences; at most `most` if given.
function hf.held_by(worker, most)
    hf.flush()
    local prefix, ids = hf.escape(worker), {}
    local upper = '(' .. sub(prefix, 1, -2) .. '\1'
    local members = call('ZRANGEBYLEX', RUNNING, '[' .. prefix, upper, 'LIMIT', 0, most or -1)
    for i, member in ipairs(members) do
        ids[i] = sub(member, (string.find(member, '\0', #prefix + 17, true) or #member) + 1)
    end
    return (hf.rows_at('running', RUNNING, members, ids, 'x'))
end

-- == part deadlines: the one deadline of all a worker's leases, and the removal of a worker.
-- lazy: built when a script first uses one of its names.

local LEASE_SECONDS = 30

-- The longest lease any worker ever had, and never less than the default: its row may be among the lost writes.
function hf.lease_max() return tonumber(call('HGET', META, 'lease_max')) or LEASE_SECONDS end

-- Moves the deadline of all the worker's leases: one small write.
function hf.extend_deadline(id, worker)
    local lease_seconds, deadline = worker[WORKER_LEASE_SECONDS], now + worker[WORKER_LEASE_SECONDS]
    worker[WORKER_RENEWED_AT], worker[WORKER_DEADLINE] = now, deadline
    local times = spack('>dddd', lease_seconds, worker[WORKER_STARTED_AT], now, deadline)
    call('HSET', WORKERS, id, times .. worker[WORKER_FACTS])
    call('ZADD', DEADLINES, deadline, id)
end

function hf.forget_worker(id)
    call('HDEL', WORKERS, id)
    call('HDEL', PORTRAITS, id)
    call('ZREM', DEADLINES, id)
    call('HDEL', CALLS, id)
end
