"""The model under audit: how it is called, its inputs and outputs, its state, and copies of it with other weights."""
