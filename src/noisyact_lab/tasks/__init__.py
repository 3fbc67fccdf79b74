"""What several experiments share: training tasks, noise settings, batches, embeddings."""
