"""Benchmarks: problems times methods times seeds, one resumable result file for each.

``python -m benchmarks --help`` lists the commands. Every objective is *maximised*.

* ``suites``: the registry of all suites.
* ``framework``: what they are made of: the loop of a replicate, configurations, result files, the
  parallel runner, statistics, reports. It knows none of the rooms below.
* ``calibration``, ``decisions``, ``delay``, ``radio``, ``robust``: problems, methods, report and
  suites of each subject.
* ``protocols``: what suites are to show and how it is decided, written down before they run.
* ``results-archive``: condensed results of suites (see ``framework.archive``).
* ``studies``: single questions with a report of their own.
* ``perf``: speed ratios. ``demo``: the demonstration.
"""
