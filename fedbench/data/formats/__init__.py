"""Readers of the on-disk formats that several data sets share."""
