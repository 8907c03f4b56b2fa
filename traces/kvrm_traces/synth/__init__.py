"""Built-in traces: generated from a preset's parameters and a seed, nothing downloaded."""
