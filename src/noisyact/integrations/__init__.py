"""Callbacks for trainers; import noisyact.integrations.lightning or noisyact.integrations.transformers."""
