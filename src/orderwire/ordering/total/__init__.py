"""Total order for messages to any subset of a group: ST and its rivals."""
