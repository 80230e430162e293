-- recover: end the leases of workers whose deadline passed and of workers proved dead. Bounded.
-- Takes now, ids of dead workers, limit. Returns one packed line per lease ended.
-- Safe twice: what ended holds no token.
-- needs: opening turns names rows index refilling letters endings leases stalls closing

hf.mend_deadlines()
local lines = hf.recover(args[2], args[3])
hf.close()
return { cpack(lines) }
