"""Who does what, and what is next. Decisions are pure; the thin code that acts on them is elsewhere.

progress   how far a changefeed is, and what it may do next
pace       how large the next batch should be
retries    how often, and after how long, what failed is tried again
"""
