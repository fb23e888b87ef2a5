"""What happened, as typed records with units in names."""
