"""Who is there and what they offer: FDP, BiFDP and their rivals, as cores.  [S002]"""
