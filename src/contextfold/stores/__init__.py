"""Implementations of the store that folding asks for; `fold.ports.store` says what each must do."""
