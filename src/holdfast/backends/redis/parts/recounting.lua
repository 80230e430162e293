-- recounting: how many jobs of each queue and task run, counted one by one: somebody damaged a number in `busy`.
-- Never writes; reads indexes, so its caller has flushed.
-- seldom: built when a script first uses one of its names.

hf.recounted = {}
local TASK_PLACE = 5 -- among the fields of a record, behind the three bytes that say how many they are

-- scope → number, as `busy` should have it.
function hf.busy_numbers()
    local numbers, ids = {}, {}
    local function add(scope) numbers[scope] = (numbers[scope] or 0) + 1 end
    hf.each_running(function(queue, id)
        add('q' .. queue)
        ids[#ids + 1] = id
    end)
    for from = 1, #ids, ARGUMENTS_MAX do
        local upto = math.min(#ids, from + ARGUMENTS_MAX - 1)
        for _, packed in ipairs(call('HMGET', JOBS, unpack(ids, from, upto))) do
            local fields = packed and { pcall(cmsgpack.unpack_limit, packed, TASK_PLACE, 3) } or {}
            local task = fields[TASK_PLACE + 2]
            if type(task) == 'string' then add('t' .. task) end
        end
    end
    return numbers
end

function hf.is_count(number) return number and number >= 0 and number < UNLIMITED and number % 1 == 0 end

-- What `busy` should have had when this script began. `change`: what began and ended here.
function hf.recount(scope, change)
    hf.flush()
    hf.recounted[scope] = hf.recounted[scope] or (hf.busy_numbers()[scope] or 0) - change
    return hf.recounted[scope]
end
