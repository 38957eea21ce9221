"""The demonstration, ``python -m benchmarks.demo``.

================== ========================================================
file               content
================== ========================================================
``__main__``       the command line, and the parts in order
``common``         what the parts share: budgets, runs, text tables
``coverage``       the first part: posteriors whose stated coverage is true
``svc_tuning``     its tuning of a support vector classifier
``interval_study`` its intervals in one dimension
``delays``         the second part: decisions while evaluations are running
``robustness``     the third part: decisions robust to a context
``decisions``      the fourth part: limits kept as often as stated
``screening``      its problem: a classifier that must not miss too many
================== ========================================================
"""
