"""Cells, axes and sweeps: many configurations, a row of results for each."""
