"""A compiled scanner for what Kineto writes; every file that it does not know well is left to the general one."""
