"""Figures of papers: conf/figure/NAME.yaml says which runs, fedbench.plots how they are drawn."""
