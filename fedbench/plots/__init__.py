"""Figures: `style` has what they are made of, `runs` those of any run, one file a paper those of its figures."""
