"""PyTorch's attention operators."""
