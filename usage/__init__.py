"""Usage and showback: what each tenant used of each model, and its share of the GPU-hours."""
