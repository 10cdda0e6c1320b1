"""The networks over NumPy arrays: the same computation without PyTorch's graphs, the gradients written out."""
