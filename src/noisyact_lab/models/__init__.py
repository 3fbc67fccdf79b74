"""The networks of the experiments, as PyTorch modules, and the search for a decoder's likeliest sequence."""
