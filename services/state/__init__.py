"""The state store: what a run must remember when its coordinator dies, in Redis or a private Valkey (docs/state.md)."""
