"""Jobs of a multirun, in whatever process, and what is made of their rows."""
