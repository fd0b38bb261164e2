"""Write what a finding advises, after checking its preconditions again."""
