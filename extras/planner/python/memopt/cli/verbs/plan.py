HELP = "what a model needs, what fits the card, and what to change"
