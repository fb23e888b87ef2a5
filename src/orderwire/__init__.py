"""Publish/subscribe in which order is a quality of service."""
