"""Many runs: jobs of a launcher, tuning, the table of a sweep."""
