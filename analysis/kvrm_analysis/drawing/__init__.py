"""Figures: one style, panels, and the pages and kinds that are put together from them."""
