"""The tables and pictures of the study of robustness, with a module for each of its questions."""
