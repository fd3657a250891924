"""Who does what, and what is next. Decisions are pure; the thin code that acts on them is elsewhere.

progress   how far a changefeed is, and what it may do next
state      what a changefeed remembers across restarts, in its own folder
"""
