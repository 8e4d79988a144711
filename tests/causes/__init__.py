"""Does `slowrank` name the cause that is planted, and the gain of its removal? `python -m tests.causes`.

Every kind of fault that `reftrain simulate` plants, as strong as a severity asks, alone and two at once. A cell is the
job with the fault and the same job without it: they give the truth of the confusion matrix, and of the price.
"""
