"""Which values arguments may have."""
