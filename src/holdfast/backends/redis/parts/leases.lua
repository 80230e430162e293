-- leases: what a worker holds. Read off the index of running jobs.
-- seldom: built when a script first uses one of its names.

-- The worker's running jobs, in the order of their fences; at most so many where it is said.
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
