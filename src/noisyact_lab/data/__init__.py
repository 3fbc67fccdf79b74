"""The data sets of the paper's experiments: what they are, where they lie, whether they are whole, how to get them.

Nothing here touches the network but :func:`noisyact_lab.data.fetch.fetch`.
"""
