"""The studio: a local page on which a model reads, writes, and is asked why. `studio` starts it.

`launch` starts the server, `guard` protects it, `routes` are its addresses, `worker` owns the models and runs one job
at a time, and the other modules are the jobs. README.md describes the path of a request.
"""

from rearview.webapp.launch import Studio, studio

__all__ = ["Studio", "studio"]
