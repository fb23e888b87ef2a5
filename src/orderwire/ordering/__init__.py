"""One file per published ordering algorithm."""
