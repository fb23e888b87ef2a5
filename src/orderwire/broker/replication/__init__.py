"""Replicas of a partition: who stores what, which order they agree on, who takes over.  [S004]"""
