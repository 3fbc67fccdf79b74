"""Callbacks for trainers. Import the one you need: noisyact.integrations.lightning or .transformers."""
