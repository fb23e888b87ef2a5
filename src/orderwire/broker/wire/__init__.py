"""Kafka's wire protocol: generated messages, primitives and record batches."""
