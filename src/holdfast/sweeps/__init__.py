"""The sweeps: bounded, leaderless passes every worker makes with jitter."""
