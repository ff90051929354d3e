HELP = "what was found here: library, drivers, devices, and why one is missing"
