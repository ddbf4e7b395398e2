"""The studio: a local server with a page and an HTTP API that draws samples of images, volumes and lesions.

`Client` needs no extra; the server needs `stochseg[studio]`.
"""

from stochseg.studio.client import Client, StudioError

__all__ = ["Client", "StudioError"]
