"""The figures of the five papers, a file for each; arrays as in fedbench.papers.figure_arrays."""
