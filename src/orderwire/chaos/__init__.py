"""Real brokers under drawn faults, and the history of what they did, for the audit."""
