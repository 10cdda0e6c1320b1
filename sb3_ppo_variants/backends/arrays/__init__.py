"""The networks over NumPy arrays: the same computation without PyTorch's graphs, with hand-written gradients."""
