"""The files of a run: checkpoints, records, pictures, and where its numbers came from."""
