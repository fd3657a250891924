"""The HTTP face of a capture: TiCDC's Open API, and what is ours beside it.

    request ──► access ──► v2, v1 ──► forwarding (to the owner) ──► actions, checking ──► operations (the port)
    answer  ◄── faults ◄───┴── wire, shapes ◄──────────────────────────────────────────── values of model.cluster

operations      what the server behind it can do: the port
app             the application          serving, tls    on a socket
"""
