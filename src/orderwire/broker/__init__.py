"""A message broker that speaks the Kafka wire protocol: codec, log, groups, request logic."""
