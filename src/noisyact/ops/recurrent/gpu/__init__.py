"""Recurrent layers and cells on a GPU, in Triton. Importing this package does not import Triton; its modules do."""
