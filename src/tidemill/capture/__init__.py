"""What acts on the decisions of ``control``: one changefeed in a process of its own.

changefeed   puts the parts together; ``running`` runs them in the foreground, ``patience`` ends them
processor    from the upstream's regions to a durable checkpoint
driver       the changefeed's query on Spark: started, watched, started again
copying      the initial copy
metadata     what a changefeed remembers across restarts
"""
