"""Replay LLM serving traces under static-graph, dynamic and KV-RM decoders, and measure what each one costs."""
