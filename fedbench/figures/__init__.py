"""Figures of papers: which runs they need and what is read of them; fedbench.plots draws them."""
