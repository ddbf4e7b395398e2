"""Frozen image features that condition a network: computed once per image, joined to the U-Net at 1/8 resolution."""
