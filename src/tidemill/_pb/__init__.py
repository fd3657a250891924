"""Generated from proto/tidemill/_pb by proto/generate.py. Do not edit; edit the .proto files.

The subset of TiKV's and PD's protocol that Tidemill speaks, under the real package names, method
paths and field numbers, so that the real servers and clients understand it.
"""
