"""JAX and its devices on this machine: whether they can be used, and what to install if not."""
