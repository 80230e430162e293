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
-- Returns known, and packed lists: lost, cancelled, released, and the commands that the worker was given. Leases of
-- received claims that are not in the list are released.
-- Concurrency: a script runs alone, and a lease is the worker's only under the token it names.

local id, held, seen = args.id, args.held, args.seen_call
local worker = hf.worker_row(id)
local lost, cancelled, released, named = {}, {}, {}, {}
if not worker then
    for i, one in ipairs(held) do lost[i] = one[HELD_ID] end
    return { 0, cpack(lost), '\144', '\144', '\144' }
end
local renewed_at, lease_seconds = worker[WORKER_RENEWED_AT], worker[WORKER_LEASE_SECONDS]
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
    else
        if row[CANCEL_REQUESTED] then cancelled[#cancelled + 1] = one[HELD_ID] end
        local gap = now - math.max(renewed_at, row[STARTED_AT]) -- formulas.renewal_gap
        if gap > lease_seconds / 2 then hf.note(row, { kind = 'renewal', gap = gap }) end
    end
end
for _, row in ipairs(rows) do
    if row[CLAIM_CALL] <= seen and named[row[ID]] ~= row[TOKEN] then
        hf.release(row)
        released[#released + 1] = row[ID]
    end
end
local commands = call('HGET', COMMANDS, id)
if #released > 0 then hf.close() end
return { 1, cpack(lost), cpack(cancelled), cpack(released), commands or '\144' }

-- == script command: store a command for a worker.
-- args: now, worker, id
-- raw: command
-- `command` is JSON; the time is kept beside it. Returns it as stored, or a refusal. Concurrency: a script runs alone.

if not hf.worker_row(args.worker) then return hf.refused('JobNotFound', { job_id = args.worker, what = 'worker' }) end
local commands, kept = hf.commands_of(args.worker), {}
local excess = #commands + 1 - COMMANDS_KEPT_MAX
for _, one in ipairs(commands) do
    if one.id == args.id then return { cpack(one) } end
    if excess > 0 and one.done_at then excess = excess - 1 else kept[#kept + 1] = one end
end
if excess > 0 then return hf.refused('TooManyCommands', { worker = args.worker }) end
local made = { id = args.id, record = ARGV.command, at = now }
kept[#kept + 1] = made
call('HSET', COMMANDS, args.worker, cpack(kept))
return { cpack(made) }

-- == script answer: store the result of a command; the first answer counts.
-- args: now, worker, id
-- raw: answer
-- `answer` is JSON. Returns whether there was such an unanswered command. Concurrency: a script runs alone.

local commands = hf.commands_of(args.worker)
for _, one in ipairs(commands) do
    if one.id == args.id and not one.done_at then
        one.done_at, one.answer = now, ARGV.answer
        call('HSET', COMMANDS, args.worker, cpack(commands))
        return { 1 }
    end
end
return { 0 }

-- == part commands: a worker's commands. One that cannot be read is ignored.
-- lazy: built when a script first uses one of its names.

local COMMANDS_KEPT_MAX = 20

function hf.commands_of(worker)
    local packed = call('HGET', COMMANDS, worker)
    local commands = packed and hf.read(packed)
    return type(commands) == 'table' and commands or {}
end

-- == script retire: a worker has ended: release its leases at no cost and remove its row.
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

-- The worker's running jobs, in the order of their fences or from the last one on; at most `most` if given.
function hf.held_by(worker, most, from_last)
    hf.flush()
    local prefix, ids = hf.escape(worker), {}
    local lower, upper, members = '[' .. prefix, '(' .. sub(prefix, 1, -2) .. '\1', nil
    if from_last then
        members = call('ZREVRANGEBYLEX', RUNNING, upper, lower, 'LIMIT', 0, most or -1)
    else
        members = call('ZRANGEBYLEX', RUNNING, lower, upper, 'LIMIT', 0, most or -1)
    end
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
    call('HDEL', COMMANDS, id)
    call('ZREM', DEADLINES, id)
    call('HDEL', CALLS, id)
end
