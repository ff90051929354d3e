HELP = "replay a trace of allocations: what it takes, and the smallest device that does"
