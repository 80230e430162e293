-- tasks: what is declared and said of tasks, their buckets, and how many of each run, at one instant. Takes now.
-- Returns rules, overrides, buckets and numbers as they are stored. Never writes.

return { call('HGETALL', TASKS), call('HGETALL', OVERRIDES), call('HGETALL', FLOWS), call('HGETALL', BUSY) }
