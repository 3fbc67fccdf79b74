"""The scores of additive attention, ``e = v . phi(k + q)``, in one pass over the keys on a GPU."""
