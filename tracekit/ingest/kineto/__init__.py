"""One Kineto trace to one table of events: scan, pair, repair, resolve groups, sort, write."""
