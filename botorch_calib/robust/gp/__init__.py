"""Functions ``u(x, c)`` of a model with gradients, in closed form if possible, else by autograd."""
