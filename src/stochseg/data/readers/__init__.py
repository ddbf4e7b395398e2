"""Readers of image files, one module per format, and of the folders and zips that contain them."""
