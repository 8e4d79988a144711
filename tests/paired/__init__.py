"""Two states of `slowrank` on the same jobs, case by case: goldens, and a paired comparison.

`jobs` makes the traces of a job and its truth, `ask` asks one checkout of the program, `judge` turns an answer into a
word, `compare` joins two files of answers. `goldens.jsonl` holds the answers of the state that it was committed with.
"""
