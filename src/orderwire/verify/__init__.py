"""The checks: plain definitions as oracles, and linear numpy kernels proven equal to them."""
