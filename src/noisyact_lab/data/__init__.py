"""The data sets of the paper's experiments: their catalogue, and code that finds, verifies, fetches and reads them.

Only :func:`noisyact_lab.data.fetch.fetch` uses the network.
"""
