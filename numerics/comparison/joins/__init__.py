"""Two captures beside each other: tensor by tensor, row by row, in the order of data flow."""
