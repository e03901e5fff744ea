"""Measures what the engine delivers: steps, frames, latency, start-up and memory."""
