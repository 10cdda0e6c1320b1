"""The figures of the pages about the objectives, and what is measured for them."""
