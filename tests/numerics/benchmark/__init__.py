"""The benchmark of `numerics compare`: every planted bug and every benign change on real runs, scored.

make bench-numerics                                   everything, results under bench_numerics/, resumable
python -m tests.numerics.benchmark --only 'P0[1-4]'   some cases
"""
