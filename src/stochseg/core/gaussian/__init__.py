"""Gaussian diffusion over real-valued maps: the process and its samplers."""
