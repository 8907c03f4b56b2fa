"""Readers: one file a format. Each says which columns identify it and what they mean; the reading itself is shared."""
