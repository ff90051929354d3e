HELP = "stream mistakes of a PyTorch program, found without a GPU"
