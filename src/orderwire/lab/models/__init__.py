"""Closed forms of the papers, as printed and as they follow."""
