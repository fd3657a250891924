"""How captures of one cluster talk: letters, in order, none lost and none heard twice, as long as both live.

letters    what is said: values, and who says it to whom in which term
values     letters as JSON and back, checked against their types
stream     one direction of a connection: numbers, receipts, sending again
post       all of it: one server, and a sender to each other capture
"""
