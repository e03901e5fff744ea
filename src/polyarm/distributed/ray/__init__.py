"""Many machines under Ray: each of its nodes runs the local engine in one actor."""
