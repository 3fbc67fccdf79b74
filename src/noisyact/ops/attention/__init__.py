"""The scores of additive attention, ``e = v . phi(k + q)``, on a GPU in one pass over the keys."""
