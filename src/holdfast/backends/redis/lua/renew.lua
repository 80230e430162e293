-- renew: workers, and the one deadline shared by all leases of a worker.

-- == script register: store a worker's row, its deadline one lease from now; repeating it renews the deadline and
-- updates queues and slots.
-- Takes now, id, lease_seconds; ARGV[2]: the worker's description of itself. Returns 1.

local id, lease_seconds = args[2], args[3]
if lease_seconds > hf.lease_max() then call('HSET', META, 'lease_max', format('%.17g', lease_seconds)) end
local worker = hf.worker_row(id)
if worker then
    local tells = cunpack(ARGV[2])
    local told = hf.read(worker[5]) or tells
    told.queues, told.slots = tells.queues, tells.slots
    worker[5] = cpack(told)
end
hf.prolong(id, worker or { lease_seconds, now, now, now, ARGV[2] })
return { 1 }

-- == script renew: move a worker's deadline; one small write however many leases it holds.
-- Takes now, worker, [id, token] pairs it holds, the last claim whose reply it received.
-- ARGV[2]: its status, if it publishes one.
-- Returns known, and packed lists: lost, cancelled, released. Leases of received claims that are not in the list are
-- released.

local id, held, seen = args[2], args[3], args[4]
local worker = hf.worker_row(id)
local lost, cancelled, released, named = {}, {}, {}, {}
if not worker then
    for i, one in ipairs(held) do lost[i] = one[1] end
    return { 0, cpack(lost), '\144', '\144' }
end
hf.prolong(id, worker)
if ARGV[2] then call('HSET', PORTRAITS, id, ARGV[2]) end
local ours = {}
local rows = hf.held_by(id)
for _, row in ipairs(rows) do ours[row[ID]] = row end
for _, one in ipairs(held) do
    local row = ours[one[1]]
    named[one[1]] = one[2]
    if not row or row[TOKEN] ~= one[2] then
        lost[#lost + 1] = one[1]
    elseif row[CANCEL_REQUESTED] then
        cancelled[#cancelled + 1] = one[1]
    end
end
for _, row in ipairs(rows) do
    if row[CLAIM_CALL] <= seen and named[row[ID]] ~= row[TOKEN] then
        hf.give_back(row)
        released[#released + 1] = row[ID]
    end
end
if #released > 0 then hf.close() end
return { 1, cpack(lost), cpack(cancelled), cpack(released) }

-- == script retire: a worker stops for good: release its leases at no cost and remove its row.
-- Takes now, worker. Returns how many leases. Idempotent: a second call finds no row.

local id = args[2]
if not hf.worker_row(id) then return { 0 } end
local rows = hf.held_by(id)
for _, row in ipairs(rows) do hf.give_back(row) end
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
-- seldom: built when a script first uses one of its names.

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
-- seldom: built when a script first uses one of its names.

local LEASE_SECONDS = 30

-- The longest lease any worker ever had, and never less than the default: its row may be among the lost writes.
function hf.lease_max() return tonumber(call('HGET', META, 'lease_max')) or LEASE_SECONDS end

-- Moves the deadline of all the worker's leases: one small write.
function hf.prolong(id, worker)
    worker[3], worker[4] = now, now + worker[1]
    call('HSET', WORKERS, id, spack('>dddd', worker[1], worker[2], worker[3], worker[4]) .. worker[5])
    call('ZADD', DEADLINES, worker[4], id)
end

function hf.forget_worker(id)
    call('HDEL', WORKERS, id)
    call('HDEL', PORTRAITS, id)
    call('ZREM', DEADLINES, id)
    call('HDEL', CALLS, id)
end
