"""The public API, in DDS words."""
