"""Captions for Flickr8k."""
