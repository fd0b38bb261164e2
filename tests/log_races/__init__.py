"""Two drivers race for an entry of Spark's log: what was replaced is found."""
