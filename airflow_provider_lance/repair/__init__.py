"""Apply the repairs that findings advise, after checking their preconditions again."""
