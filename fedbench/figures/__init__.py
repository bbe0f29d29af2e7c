"""Figures of papers, of runs and of tables: which runs they need and what is read of them; fedbench.plots draws."""
