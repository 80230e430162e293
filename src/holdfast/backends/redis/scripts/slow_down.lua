-- slow_down: nothing of a queue starts for so long. Takes now, queue, seconds. Returns until when. Never shortens.
-- Safe against a rival: a script runs alone.

if sealed then return hf.refused_sealed() end
local scope = 'q' .. args[2]
local flow = hf.flow_of(scope) or { 0, 0, false }
flow[2] = math.max(flow[2], now + args[3])
hf.keep_flow(scope, flow)
return { format('%.17g', flow[2]) }
