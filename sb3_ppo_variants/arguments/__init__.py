"""Checks of the values of arguments."""
