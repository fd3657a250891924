"""The HTTP face of a capture: TiCDC's Open API, and what is ours beside it.

operations      what the server behind it can do: the port
"""
