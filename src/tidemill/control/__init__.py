"""Who does what, and what is next. Decisions are pure; the thin code that acts on them is elsewhere.

ownership  how far a changefeed is as a whole: when a DDL may run, a sync point be noted
progress   how far a processor is with its tables, and what it may do next
barriers   DDLs that have not run, and the tables that wait for them
lanes      which tables go on by themselves, and when they join the others
pace       how large the next batch should be
retries    how often, and after how long, what failed is tried again
"""
