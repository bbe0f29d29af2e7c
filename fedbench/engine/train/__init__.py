"""Training a cohort: one client after another, in processes, or stacked as one program."""
