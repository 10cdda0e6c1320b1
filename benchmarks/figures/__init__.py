"""The figures of the pages about the objectives, and the measurements for them."""
