"""What users may say, read once into values that cannot be wrong.

values       durations, booleans, numbers and words, one reader each
changefeed   a changefeed's file (TOML), in TiCDC's spelling; ``keys`` lists what it may say
sink_uri     what of a sink URI may be seen, and what of it says where the sink is
"""
