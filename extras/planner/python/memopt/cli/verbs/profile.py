HELP = "run a program and record its memory over time"
