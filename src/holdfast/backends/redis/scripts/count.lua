-- count: jobs by queue and state, at one instant. Takes now. Returns packed {queue → {state → number}}. Never writes.

return { cpack(hf.counted()) }
