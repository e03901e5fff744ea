"""Policies for others to use: a batching server of openpi's websocket protocol."""
