"""Operations for a recurrent layer in one direction and for one step of a cell, with noise from a seed."""
