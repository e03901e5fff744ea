"""Runs policies in many envs at once: which episode where, action queues, the batched loop."""
