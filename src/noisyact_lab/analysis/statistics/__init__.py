"""The laboratory's statistics: intervals, paired differences, equivalence, times to a threshold, Holm's correction.

A run is one seed of one arm. The seeds of an arm are independent draws, and their numbers are taken as normal. The runs
of two arms with the same seed share their data and, in most experiments, their first weights, so arms are compared by
the differences of runs with the same seed.

scipy has the distributions. It belongs to the extra `experiments` and is imported where it is used: training runs
without it, and :func:`noisyact_lab.analysis.statistics.intervals.missing` says how to install it.
"""
