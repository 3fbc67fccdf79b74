"""A benchmark of recurrent layers on cases drawn at random from the whole space of sizes, cells and dtypes."""
