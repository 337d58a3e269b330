"""Implementations of the store that folding asks for; `fold.store` says what each must do."""
