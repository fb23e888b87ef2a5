"""Linear checks on numpy columns, free of any engine: the oracles' definitions, made fast."""
