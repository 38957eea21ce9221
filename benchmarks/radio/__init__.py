"""Powers and antenna tilts of a radio network, station by station, as in the paper on LOCBO.

============ ============
file         content
============ ============
``suites``   the suite
``problems`` its problems
``methods``  its methods
``report``   its report
============ ============
"""
