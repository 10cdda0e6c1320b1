"""Arguments: the rules for their values, and how command lines write them."""
