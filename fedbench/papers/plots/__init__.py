"""The figures of the papers, a file for each paper; arrays as in fedbench.papers.figure_arrays."""
